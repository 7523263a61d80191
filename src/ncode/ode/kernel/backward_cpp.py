"""The source of a pullback: the walk back along the tape of a solve, for a block of samples.

Each step is repeated (`primal`, which keeps what its pullback needs) and pulled through (`adjoint`), stage by stage.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .driver_cpp import (
    Machine,
    Shape,
    context,
    declarations,
    load_controls,
    move_saved,
    move_states,
    places_of,
    print_results,
    saved_weights,
    sum_sizes,
    weighted,
    work_of,
)
from .emit_cpp import Printer, array_index, collapse, lane_buffers
from .ir import Buffer, Program, Statement, View, reads
from .lower import Lowered


def backward_source(parts: Sequence[Lowered], shape: Shape, dtype: torch.dtype, machine: Machine) -> str:
    """The pullback of a solve, `pull`, along its tape. `parts`: the pullback of an evaluation, or of a step."""
    (lowered,) = parts
    program, whole = lowered.program, lowered.graph.is_step
    keep = machine.keeps_stages and not whole
    time = lowered.graph.wanted is not None and lowered.graph.wanted.time
    work = work_of(parts, shape, 1 if whole else shape.evaluations * (1 if keep else 2))
    lines = [machine.prelude(dtype, work), declarations(parts, shape, machine), _stage(program), machine.memory]
    lines.append(context(parts, shape, program, f"Stage stage[{'S + 1' if keep else 1}];"))
    if whole:
        lines += [_adjoint(lowered, shape, [*program.statements, *program.adjoint])]
    else:
        lines += [_primal(lowered, shape), _adjoint(lowered, shape, program.adjoint)]
    lines += [_PULL_START, load_controls(shape), move_states(shape, "load", "g", "z0"), _PULL_BEGIN]
    lines += _pull_whole_step(lowered, shape) if whole else _pull_step(lowered, shape, keep, time)
    lines += [_PULL_UPDATE, _PULL_TIMES if time else "", "  }"]
    lines += [_PULL_START_TIMES.replace("GET", _get_saved(shape)) if shape.saved else "", *_store(program, shape)]
    lines += [move_states(shape, "store", "g", "z1"), _PULL_END, machine.run_backward]
    return "\n".join(lines)


def _crossing(program: Program) -> list[Buffer]:
    """The buffers that outlive the function that writes them."""
    read = {buffer for it in program.adjoint for buffer in reads(it)}
    late = {view.buffer for term in program.terms for view in term.factors}
    wanted = {*read, *late, *(view.buffer for view in program.results)}
    first = [buffer for buffer in lane_buffers(program.statements) if buffer in wanted]
    return first + [buffer for buffer in lane_buffers(program.adjoint) if buffer in late]


def _stage(program: Program) -> str:
    fields = [f"V {buffer.name}[{max(buffer.size, 1)}];" for buffer in _crossing(program)]
    return "\n  ".join(["struct Stage {", "V t[1], h[1], z[D], g[D];", *fields]) + "\n};"


def _staged(lowered: Lowered, shape: Shape) -> dict[Buffer, str]:
    own = {buffer: f"s.{buffer.name}" for buffer in _crossing(lowered.program)}
    return places_of(lowered, shape, "s.") | own


def _primal(lowered: Lowered, shape: Shape) -> str:
    printer = Printer(_staged(lowered, shape))
    printer.block(lowered.program.statements)
    print_results(printer, "k", lowered.program.slopes, shape)
    return _function("primal", "V *k", printer)


def _adjoint(lowered: Lowered, shape: Shape, statements: Sequence[Statement]) -> str:
    program = lowered.program
    single = (*program.state_gradients, program.time_gradient, program.size_gradient)
    printer = Printer(_staged(lowered, shape), [view.buffer for view in single if isinstance(view, View)])
    printer.block(statements)
    print_results(printer, "m", program.state_gradients, shape)
    printer.copy("tau", program.time_gradient, ())
    printer.copy("eta", program.size_gradient, ())
    return _function("adjoint", "V *m, V *tau, V *eta", printer)


def _function(name: str, arguments: str, printer: Printer) -> str:
    body = "\n  ".join(printer.lines)
    return f"FUNCTION void {name}(const Context &c, Stage &s, {arguments}) {{\n  {body}\n}}"


def _used_stages(shape: Shape) -> list[int]:
    """The stages on which the end of a step, or a saved value in it, depends."""
    tableau, used = shape.explicit, set[int]()
    for i in reversed(range(tableau.stages)):
        if tableau.b[i] or (shape.saved and any(tableau.dense[i])) or any(tableau.a[j][i] for j in used if j > i):
            used.add(i)
    return sorted(used)


def _pull_step(lowered: Lowered, shape: Shape, keep: bool, time: bool) -> list[str]:
    """One step again, stage by stage, and its pullback, last stage first."""
    used, lines = _used_stages(shape), _pull_saved(shape) if shape.saved else []
    for i in used:
        lines += _evaluate(shape, i, f"c.stage[{i if keep else 0}]")
    lines += ["    LOOP for (int d = 0; d < D; d++) sum[d] = spread(0);", "    V dh = spread(0), dt = spread(0);"]
    stages = [f"c.stage[{i}]" for i in used]
    if shape.saved and shape.explicit.dense_needs_end:
        stages.append("c.stage[S]" if keep else "c.stage[0]")
        lines += _pull_end(shape, stages[-1])
        lines += [] if keep else _accumulate(lowered, shape, stages[-1:])
    for i in reversed(used):
        stage = f"c.stage[{i if keep else 0}]"
        if not keep and (i != used[-1] or len(stages) > len(used)):
            lines += _evaluate(shape, i, stage)
        lines += _pull_stage(shape, i, stage, time)
        if not keep:
            lines += _accumulate(lowered, shape, [stage])
    if keep:
        lines += [*_mask(lowered, shape, "S + 1" if len(stages) > len(used) else "S")]
        lines += _accumulate(lowered, shape, stages)
    return [*lines, "    LOOP for (int d = 0; d < SHOWN; d++) sum[d] += own[d];"] if shape.saved else lines


def _pull_saved(shape: Shape) -> list[str]:
    """The gradients of the slopes, `us`, and of the state, `own`, from the saved values that a step passed."""
    tableau = shape.explicit
    rows = [i for i, row in enumerate(tableau.dense) if any(row)]
    lines = [_PULL_SAVED.replace("GET", _get_saved(shape)), *saved_weights(tableau)]
    total = " ".join(f"us[{i}][d] += w[{i}] * passed[d];" for i in rows)
    lines.append(f"      LOOP for (int d = 0; d < SHOWN; d++) {{ own[d] += passed[d]; {total} }}")
    text = "\n".join([*lines, "      back += counts(gone | due);", "    }"])
    return [text.replace("WEIGHTS", str(len(tableau.dense)))]


def _get_saved(shape: Shape) -> str:
    return "\n".join(move_saved(shape, "get_at", "passed", "saved_gradient", "back", "due"))


def _pull_end(shape: Shape, stage: str) -> list[str]:
    """The pullback of the slope at the end of a step, which dense output uses."""
    return [
        f"    LOOP for (int d = 0; d < D; d++) {stage}.z[d] = z[d] + hs * ({weighted(shape.explicit.b)});",
        f"    {stage}.t[0] = c.clock(t + h);",
        f"    {{ V unused[D]; primal(c, {stage}, unused); }}",
        f"    LOOP for (int d = 0; d < D; d++) {stage}.g[d] = d < SHOWN ? hs * us[S][d] : spread(0);",
        f"    {{ V last[D]; adjoint(c, {stage}, last, &tau, &eta);",
        "    LOOP for (int d = 0; d < D; d++) g[d] = choose(act, g[d] + last[d], g[d]); }",
    ]


def _pull_whole_step(lowered: Lowered, shape: Shape) -> list[str]:
    """The pullback of a step that was traced as a whole."""
    return [
        "    LOOP for (int d = 0; d < D; d++) c.stage[0].z[d] = z[d], c.stage[0].g[d] = g[d];",
        "    c.stage[0].t[0] = c.clock(t), c.stage[0].h[0] = hs;",
        "    adjoint(c, c.stage[0], m[0], &tau, &eta);",
        "    LOOP for (int d = 0; d < D; d++) sum[d] = m[0][d] - g[d];",
        "    V dh = eta, dt = tau;",
        *_mask(lowered, shape, "1"),
        *_accumulate(lowered, shape, ["c.stage[0]"]),
    ]


def _evaluate(shape: Shape, i: int, stage: str) -> list[str]:
    """The slope k of a stage, and what its pullback needs."""
    tableau = shape.explicit
    total = f"z[d] + hs * ({weighted(tableau.a[i])})" if any(tableau.a[i]) else "z[d]"
    return [
        f"    LOOP for (int d = 0; d < D; d++) {stage}.z[d] = {total};",
        f"    {stage}.t[0] = c.clock(t + {tableau.c[i]!r} * h);",
        f"    primal(c, {stage}, k[{i}]);",
    ]


def _pull_stage(shape: Shape, i: int, stage: str, time: bool) -> list[str]:
    tableau, used = shape.explicit, _used_stages(shape)
    later = [(j, tableau.a[j][i]) for j in used if j > i and tableau.a[j][i]]
    parts = [f"real({tableau.b[i]!r}) * g[d]"] * bool(tableau.b[i])
    parts += [f"real({w!r}) * m[{j}][d]" for j, w in later]
    if shape.saved and any(tableau.dense[i]):
        parts.append(f"(d < SHOWN ? us[{i}][d] : spread(0))")
    dot = f" dh += u * k[{i}][d];" if time else ""
    lines = [
        f"    LOOP for (int d = 0; d < D; d++) {{ V u = {' + '.join(parts)}; {stage}.g[d] = hs * u;{dot} }}",
        f"    adjoint(c, {stage}, m[{i}], &tau, &eta);",
        f"    LOOP for (int d = 0; d < D; d++) sum[d] += m[{i}][d];",
    ]
    return [*lines, f"    dt += tau; dh += real({tableau.c[i]!r}) * tau;"] if time else lines


def _mask(lowered: Lowered, shape: Shape, stages: str = "S") -> list[str]:
    """Nothing that a sample computes while it stands still may reach a sum: it may be nan."""
    places, views = _staged(lowered, shape), [view for term in lowered.program.terms for view in term.factors]
    sizes = {places[view.buffer]: view.buffer.size for view in views if "s." in places[view.buffer]}
    lines = [
        f"      for (int e = 0; e < {n}; e++) {it}[e] = choose(act, {it}[e], spread(0));" for it, n in sizes.items()
    ]
    return [f"    if (!whole) for (int i = 0; i < {stages}; i++) {{", "      Stage &s = c.stage[i];", *lines, "    }"]


def _sum_places(program: Program) -> list[str]:
    """Where the sum of each term is: of a sample, then over samples."""
    starts, sizes = [0], sum_sizes(program)
    for size in sizes:
        starts.append(starts[-1] + size)
    own = [f"c.own{i}" for i in range(len(program.own_terms))]
    return [*own, *(f"(c.total + {start})" for start in starts[: len(sizes)])]


def _accumulate(lowered: Lowered, shape: Shape, stages: list[str]) -> list[str]:
    """Add what stages contribute to the sums; several at a time, so that a sum is read and written once."""
    places, lines = _staged(lowered, shape), []
    for place, term in zip(_sum_places(lowered.program), lowered.program.terms, strict=True):
        target = View.whole(Buffer("sum", 0), term.shape)
        sizes, (into, *strides) = collapse(term.shape, [target, *term.factors])
        names = [f"i{d}" for d in range(len(sizes))]
        heads = [f"LOOP for (int {i} = 0; {i} < {n}; {i}++)" for i, n in zip(names, sizes, strict=True)]
        views = list(zip(term.factors, strides, strict=True))
        elements = [f"{places[view.buffer]}[{array_index(view.offset, own, names)}]" for view, own in views]
        products = [" * ".join(it.replace("s.", f"{stage}.") for it in elements) for stage in stages]
        lines.append(f"    {' '.join(heads)} {place}[{array_index(0, into, names)}] += {' + '.join(products)};")
    return lines


def _store(program: Program, shape: Shape) -> list[str]:
    lines = []
    for number, control in enumerate(program.own_terms):
        size = shape.controls[control]
        lines.append(f"  store(c.own{number}, p.theta_gradient[{control}], {size}, c);")
        lines.append(f"  LOOP for (int e = 0; e < {size}; e++) c.own{number}[e] = spread(0);")
    return lines


_PULL_START = """
FUNCTION void pull_block(const Settings &p, Context &c) {
  V g[D], k[S][D], m[S][D], sum[D], tau, eta;
  (void)k, (void)m;
  c.t0 = p.t0 ? times(p.t0, c) : time_of(0);"""


_PULL_BEGIN = """
  T span = times(p.span, c), t0_gradient = time_of(0), span_gradient = time_of(0);
  span = span == 0 ? time_of(1) : span;
  N count = recorded(p, c), back = N{} + (int32_t)(p.times - 1);
  T direction = sign_of(span), reached = p.times ? times(p.reached, c) : time_of(0);
  (void)back, (void)direction, (void)reached;
  for (int32_t n = most(count) - 1; n >= 0; n--) {
    TM taken = before(n, count);
    M act = thin(taken);
    bool whole = !some(not_(taken));
    (void)whole;
    T t, h;
    V z[D];
    recall(p, n, &t, &h, z, c);
    h = taken ? h : time_of(0);
    V hs = narrow(h);"""


_PULL_SAVED = """
    V us[WEIGHTS][SHOWN], own[SHOWN];
    LOOP for (int d = 0; d < SHOWN; d++) {
      own[d] = spread(0);
      LOOP for (int i = 0; i < WEIGHTS; i++) us[i][d] = spread(0);
    }
    for (;;) {
      T at = saved_time(p, back, c);
      TM there = taken & valid(p, back), gone = there & ((at != at) | (direction * at > direction * reached));
      TM due = there & not_(gone) & (direction * at > direction * t);
      if (!some(gone | due)) break;
      V sigma = narrow(due ? (at - t) / h : time_of(0)), w[WEIGHTS], passed[SHOWN];
GET"""


_PULL_START_TIMES = """
  for (;;) {
    TM there = valid(p, back), due = there & (saved_time(p, back, c) == 0);
    if (!some(there)) break;
    V passed[SHOWN];
GET
    LOOP for (int d = 0; d < SHOWN; d++) g[d] += passed[d];
    back += counts(there);
  }"""


_PULL_UPDATE = "    LOOP for (int d = 0; d < D; d++) g[d] = choose(act, g[d] + sum[d], g[d]);"


_PULL_TIMES = """
    t0_gradient += taken ? widen(dt) : time_of(0);
    span_gradient += taken ? (t / span) * widen(dt) + (h / span) * widen(dh) : time_of(0);"""


_PULL_END = """
  put(p.t0_gradient, t0_gradient, c), put(p.span_gradient, span_gradient, c);
}"""
