"""The C++ source of a pullback: the walk back along the tape of a solve, for a block of samples.

Each step is repeated (`primal`, which keeps what its pullback needs) and pulled through (`adjoint`), stage by stage.
"""

from __future__ import annotations

import torch

from ..tableau import Tableau
from .driver_cpp import TAPE, Shape, context, load_controls, places_of, print_results, sizes, weighted
from .emit_cpp import Printer, array_index, collapse, lane_buffers
from .ir import Buffer, Program, View, reads
from .lower import Lowered
from .math_cpp import prelude


def backward_source(lowered: Lowered, shape: Shape, dtype: torch.dtype) -> str:
    """The pullback of a solve, `pull`, along its tape."""
    program = lowered.program
    lines = [prelude(dtype), sizes(shape), _stage(program), context(lowered, shape, program), TAPE]
    lines += [
        _primal(lowered, shape),
        _adjoint(lowered, shape),
        _PULL_START,
        load_controls(lowered, shape),
        _PULL_BEGIN,
    ]
    lines += [*_replay(shape), *_pull_stages(lowered, shape), _PULL_UPDATE]
    if lowered.graph.wanted is not None and lowered.graph.wanted.time:
        lines.append(_PULL_TIMES)
    lines += [*_mask(lowered, shape), *_accumulate(lowered, shape), "  }", *_store(program, shape)]
    lines += [_PULL_END, _sums(program), _RUN_BACKWARD]
    return "\n".join(lines)


def sum_sizes(program: Program) -> list[int]:
    """How many elements each sum over samples has."""
    return [term.factors[0].size for term in program.shared_terms]


def _crossing(program: Program) -> list[Buffer]:
    """The buffers that outlive the function that writes them."""
    read = {buffer for it in program.adjoint for buffer in reads(it)}
    late = {view.buffer for term in program.terms for view in term.factors}
    wanted = {*read, *late, *(view.buffer for view in program.results)}
    first = [buffer for buffer in lane_buffers(program.statements) if buffer in wanted]
    return first + [buffer for buffer in lane_buffers(program.adjoint) if buffer in late]


def _stage(program: Program) -> str:
    fields = [f"V {buffer.name}[{max(buffer.size, 1)}];" for buffer in _crossing(program)]
    return "\n  ".join(["struct Stage {", "V t[1], z[D], g[D];", *fields]) + "\n};"


def _staged(lowered: Lowered, shape: Shape) -> dict[Buffer, str]:
    own = {buffer: f"s.{buffer.name}" for buffer in _crossing(lowered.program)}
    return places_of(lowered, shape, "s.") | own


def _primal(lowered: Lowered, shape: Shape) -> str:
    printer = Printer(_staged(lowered, shape))
    printer.block(lowered.program.statements)
    print_results(printer, "k", lowered.program.slopes, shape)
    return _function("primal", "V *k", printer)


def _adjoint(lowered: Lowered, shape: Shape) -> str:
    program = lowered.program
    results = [view.buffer for view in (*program.state_gradients, program.time_gradient) if isinstance(view, View)]
    printer = Printer(_staged(lowered, shape), results)
    printer.block(program.adjoint)
    print_results(printer, "m", program.state_gradients, shape)
    printer.copy("tau", program.time_gradient, ())
    return _function("adjoint", "V *m, V *tau", printer)


def _function(name: str, arguments: str, printer: Printer) -> str:
    body = "\n  ".join(printer.lines)
    return f"static void {name}(const Context &c, Stage &s, {arguments}) {{\n  {body}\n}}"


def _used_stages(tableau: Tableau) -> list[int]:
    """The stages on which the end of a step depends."""
    used: set[int] = set()
    for i in reversed(range(tableau.stages)):
        if tableau.b[i] or any(tableau.a[j][i] for j in used if j > i):
            used.add(i)
    return sorted(used)


def _replay(shape: Shape) -> list[str]:
    tableau, lines = shape.tableau, []
    for i in _used_stages(tableau):
        total = f"z[d] + hs * ({weighted(tableau.a[i])})" if any(tableau.a[i]) else "z[d]"
        lines.append(f"    for (int d = 0; d < D; d++) c.stage[{i}].z[d] = {total};")
        lines.append(f"    c.stage[{i}].t[0] = c.clock(t + {tableau.c[i]!r} * h);")
        lines.append(f"    primal(c, c.stage[{i}], k[{i}]);")
    return lines


def _pull_stages(lowered: Lowered, shape: Shape) -> list[str]:
    tableau, used = shape.tableau, _used_stages(shape.tableau)
    time = lowered.graph.wanted is not None and lowered.graph.wanted.time
    lines = ["    for (int d = 0; d < D; d++) sum[d] = all(0);", "    V dh = all(0), dt = all(0);"]
    for i in reversed(used):
        later = [(j, tableau.a[j][i]) for j in used if j > i and tableau.a[j][i]]
        parts = [f"real({tableau.b[i]!r}) * g[d]"] * bool(tableau.b[i])
        parts += [f"real({w!r}) * m[{j}][d]" for j, w in later]
        dot = f" dh += u * k[{i}][d];" if time else ""
        lines.append(
            f"    for (int d = 0; d < D; d++) {{ V u = {' + '.join(parts)}; c.stage[{i}].g[d] = hs * u;{dot} }}"
        )
        lines.append(f"    adjoint(c, c.stage[{i}], m[{i}], &tau);")
        lines.append(f"    for (int d = 0; d < D; d++) sum[d] += m[{i}][d];")
        if time:
            lines.append(f"    dt += tau; dh += real({tableau.c[i]!r}) * tau;")
    return lines


def _mask(lowered: Lowered, shape: Shape) -> list[str]:
    """Nothing that a sample computes while it stands still may reach a sum: it may be nan."""
    places, views = _staged(lowered, shape), [view for term in lowered.program.terms for view in term.factors]
    sizes = {places[view.buffer]: view.buffer.size for view in views if "s." in places[view.buffer]}
    lines = [f"      for (int e = 0; e < {n}; e++) {it}[e] = choose(act, {it}[e], all(0));" for it, n in sizes.items()]
    return ["    if (!whole) for (int i = 0; i < S; i++) {", "      Stage &s = c.stage[i];", *lines, "    }"]


def _accumulate(lowered: Lowered, shape: Shape) -> list[str]:
    """Add what all stages of a step contribute to the sums, so that a sum is read and written once per step."""
    places, used, lines = _staged(lowered, shape), _used_stages(shape.tableau), []
    for number, term in enumerate(lowered.program.terms):
        target = View.whole(Buffer("sum", 0), term.shape)
        sizes, (into, *strides) = collapse(term.shape, [target, *term.factors])
        names = [f"i{d}" for d in range(len(sizes))]
        heads = [f"for (int {i} = 0; {i} < {n}; {i}++)" for i, n in zip(names, sizes, strict=True)]
        views = list(zip(term.factors, strides, strict=True))
        elements = [f"{places[view.buffer]}[{array_index(view.offset, own, names)}]" for view, own in views]
        products = [" * ".join(it.replace("s.", f"c.stage[{stage}].") for it in elements) for stage in used]
        lines.append(f"    {{ V *__restrict sum = c.sum{number};")
        lines.append(f"    {' '.join(heads)} sum[{array_index(0, into, names)}] += {' + '.join(products)}; }}")
    return lines


def _store(program: Program, shape: Shape) -> list[str]:
    lines = []
    for number, control in enumerate(program.own_terms):
        size = shape.controls[control]
        lines.append(f"  store(c.sum{number}, (real *)p.theta_gradient[{control}], {size}, c.first, p.batch);")
        lines.append(f"  memset(c.sum{number}, 0, sizeof c.sum{number});")
    return lines


def _sums(program: Program) -> str:
    """Add the lanes of the sums over samples, and write them one after another."""
    lines, start, offset = ["static void finish(Context &c, real *out) {"], len(program.own_terms), 0
    for number, term in enumerate(program.shared_terms):
        size = term.factors[0].size
        total = "real r = 0; for (int l = 0; l < W; l++) r += v[l];"
        lines.append(
            f"  for (int e = 0; e < {size}; e++) {{ V v = c.sum{start + number}[e]; {total} out[{offset} + e] = r; }}"
        )
        offset += size
    lines.append("  (void)c; (void)out;")
    return "\n".join([*lines, "}", f"enum {{ SUMS = {offset} }};"])


_PULL_START = """
static void pull_block(const Settings &p, Context &c, int64_t block) {
  c.place(p, block);
  const Steps &tape = (*(const Tape *)p.tape)[block];
  V g[D], k[S][D], m[S][D], sum[D], tau;
  (void)k, (void)m;"""


_PULL_BEGIN = """
  T span, t0_gradient = time_of(0), span_gradient = time_of(0);
  for (int l = 0; l < W; l++) span[l] = p.span[c.sample[l]] == 0 ? 1 : p.span[c.sample[l]];
  { int64_t from = 0;
    const int64_t sizes[LEAVES] = SIZES;
    for (int i = 0; i < LEAVES; i++) load(g + from, (const real *)p.z0[i], sizes[i], c.sample), from += sizes[i]; }
  int32_t steps = 0, count[W];
  for (int l = 0; l < W; l++) {
    count[l] = c.first + l < p.batch && p.active[c.first + l] ? tape.count[l] : 0;
    if (count[l] > steps) steps = count[l];
  }
  for (int32_t n = steps - 1; n >= 0; n--) {
    TM taken;
    for (int l = 0; l < W; l++) taken[l] = n < count[l] ? -1 : 0;
    M act = narrow(taken);
    bool whole = !any(~taken);
    T t, h;
    V z[D];
    memcpy(&t, &tape.t[(size_t)n * W], sizeof t);
    memcpy(&h, &tape.h[(size_t)n * W], sizeof h);
    memcpy(z, &tape.z[(size_t)n * D * W], sizeof z);
    h = taken ? h : time_of(0);
    V hs = narrow(h);"""


_PULL_UPDATE = "    for (int d = 0; d < D; d++) g[d] = choose(act, g[d] + sum[d], g[d]);"


_PULL_TIMES = """
    t0_gradient += taken ? widen(dt) : time_of(0);
    span_gradient += taken ? (t / span) * widen(dt) + (h / span) * widen(dh) : time_of(0);"""


_PULL_END = """
  { int64_t from = 0;
    const int64_t sizes[LEAVES] = SIZES;
    for (int i = 0; i < LEAVES; i++) store(g + from, (real *)p.z1[i], sizes[i], c.first, p.batch), from += sizes[i]; }
  for (int l = 0; l < W && c.first + l < p.batch; l++) {
    p.t0_gradient[c.first + l] = t0_gradient[l];
    p.span_gradient[c.first + l] = span_gradient[l];
  }
}"""


_RUN_BACKWARD = """
extern "C" int pull(const Settings *p) {
  try {
    int64_t blocks = (p->batch + W - 1) / W;
    run_chunks(p->chunks, p->threads, [&](int64_t chunk) {
      Context *c = new (std::align_val_t(128)) Context();
      c->prepare(*p);
      for (int64_t b = blocks * chunk / p->chunks; b < blocks * (chunk + 1) / p->chunks; b++) pull_block(*p, *c, b);
      finish(*c, p->sums + chunk * SUMS);
      operator delete(c, std::align_val_t(128));
    });
  } catch (const std::exception &) { return 1; }
  return 0;
}
"""
