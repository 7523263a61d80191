"""The source of a solve: the loop of `integrate` for a block of samples.

Every line of `_ACCEPT` and `_FIRST_STEP` has its counterpart in attempt.py and step.py, with the names it has there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..tableau import Tableau
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
    weighted,
    work_of,
)
from .emit_cpp import Printer
from .lower import Lowered


def forward_source(parts: Sequence[Lowered], shape: Shape, dtype: torch.dtype, machine: Machine) -> str:
    """A solve, `solve`, that leaves a tape if it is asked to. `parts`: an evaluation, and a step if it is traced."""
    tableau, adaptive = shape.tableau, not shape.fixed
    work = work_of(parts, shape, tableau.stages + 2 if len(parts) == 1 else 1)
    lines = [machine.prelude(dtype, work), declarations(parts, shape, machine), machine.memory, context(parts, shape)]
    lines += [_slope(parts[0], shape), _norm(shape), _FIRST_STEP if adaptive else ""]
    lines += [_step(part, shape) for part in parts[1:]]
    lines += [_START, load_controls(shape), move_states(shape, "load", "z", "z0"), *_check_given(shape), _BEGIN]
    lines += _save_start(shape) if shape.saved else []
    if adaptive:
        lines.append(f"  T h = c.limited(first_step(c, z, first, t1, {tableau.error_order + 1}));")
    else:
        lines.append("  T h = p.dt * sign_of(t1);")
    lines += [_LOOP, *(_explicit(shape) if isinstance(tableau, Tableau) else _rosenbrock(shape))]
    lines += ["  }", move_states(shape, "store", "z", "z1"), _FINISH, machine.run_forward]
    return "\n".join(lines)


def _check_given(shape: Shape) -> list[str]:
    """Whether the state and the control of a sample are finite."""
    arrays = [("z", "D"), *((f"c.theta{i}", str(size)) for i, size in enumerate(shape.controls))]
    loops = [f"  LOOP for (int e = 0; e < {size}; e++) given &= is_finite({name}[e]);" for name, size in arrays]
    return ["  M given = not_(M{});", *loops]


def _slope(lowered: Lowered, shape: Shape) -> str:
    printer = Printer(places_of(lowered, shape), [view.buffer for view in lowered.program.results])
    printer.block(lowered.program.statements)
    print_results(printer, "k", lowered.program.slopes, shape)
    body = "\n  ".join(printer.lines)
    return f"FUNCTION void slope(const Context &c, V time, const V *z, V *k) {{\n  V t[1] = {{time}};\n  {body}\n}}"


def _norm(shape: Shape) -> str:
    """The largest norm of the parts of z."""
    lines = ["INLINE V norm(const Context &c, const V *e, const V *size) {", "  V largest = spread(0);"]
    for number, (start, stop) in enumerate(shape.parts):
        lines.append("  { V sum = spread(0);")
        lines += [
            f"  LOOP for (int d = {shape.offsets[leaf]}; d < {shape.offsets[leaf + 1]}; d++) {{ V q = e[d] /"
            f" (size[d] * c.rtol[{leaf}] + c.atol[{leaf}]); sum += q * q; }}"
            for leaf in range(start, stop)
        ]
        count = shape.offsets[stop] - shape.offsets[start]
        value = f"sqrt_(sum / {count})"
        lines.append(f"  largest = {value if number == 0 else f'maximum_(largest, {value})'}; }}")
    return "\n".join([*lines, "  return largest;", "}"])


def _step(lowered: Lowered, shape: Shape) -> str:
    """A traced step."""
    program = lowered.program
    printer = Printer(places_of(lowered, shape), [view.buffer for view in program.results])
    printer.block(program.statements)
    print_results(printer, "z1", program.slopes, shape)
    print_results(printer, "e", program.errors, shape)
    printer.copy("singular", program.singular, ())
    head = "FUNCTION void step(const Context &c, V time, V size, const V *z, V *z1, V *e, V *singular) {"
    return "\n  ".join([head, "V t[1] = {time}, h[1] = {size};", *printer.lines]) + "\n}"


def _rosenbrock(shape: Shape) -> list[str]:
    lines = ["    V singular;", "    step(c, c.clock(t), hs, z, z1, e, &singular);"]
    lines += _FIXED_RATIO if shape.fixed else [_SIZE, "    V ratio = norm(c, e, size);"]
    failed = "    failure = counts(wide(singular != 0)) ? N{} + SINGULAR_MATRIX : failure;"
    return [*lines, _ACCEPT.format(fixed=str(shape.fixed).lower(), failure=failed, save="")]


def _explicit(shape: Shape) -> list[str]:
    tableau, end = shape.explicit, shape.needs_end
    known = "    LOOP for (int d = 0; d < D; d++) k[0][d] = first[d];"
    lines = [known if end else "    slope(c, c.clock(t), z, k[0]);"]
    for i in range(1, tableau.stages):
        lines.append(f"    LOOP for (int d = 0; d < D; d++) y[d] = z[d] + hs * ({weighted(tableau.a[i])});")
        lines.append(f"    slope(c, c.clock(t + {tableau.c[i]!r} * h), y, k[{i}]);")
    lines.append(f"    LOOP for (int d = 0; d < D; d++) z1[d] = z[d] + hs * ({weighted(tableau.b)});")
    if end:
        lines.append(f"    slope(c, c.clock(t + h), z1, k[{tableau.stages}]);")
    lines += _FIXED_RATIO if shape.fixed else [_SIZE, *_estimate(tableau)]
    lines += _check_dense(shape) if shape.saved else []
    save = "\n".join(_save(shape)) if shape.saved else ""
    lines.append(_ACCEPT.format(fixed=str(shape.fixed).lower(), failure="", save=save))
    if end:
        lines.append(
            f"    LOOP for (int d = 0; d < D; d++) first[d] = choose(moved, k[{tableau.stages}][d], first[d]);"
        )
    return lines


def _check_dense(shape: Shape) -> list[str]:
    """Make the ratio nan where a slope is not finite that only dense output depends on."""
    tableau = shape.explicit
    checked = tableau.b if shape.fixed else tableau.error
    only = [i for i, row in enumerate(tableau.dense) if any(row) and not (i < len(checked) and checked[i])]
    return [f"    LOOP for (int d = 0; d < D; d++) ratio += abs_(k[{i}][d] * 0);" for i in only]


def _save_start(shape: Shape) -> list[str]:
    """The state itself at saved times that are t0."""
    put = "\n".join(move_saved(shape, "put_at", "z", "saved", "upcoming", "due"))
    return [_SAVE_START.replace("PUT", put)]


def _save(shape: Shape) -> list[str]:
    """Dense output at the saved times that a step passes."""
    tableau = shape.explicit
    total = " + ".join(f"w[{i}] * k[{i}][d]" for i, row in enumerate(tableau.dense) if any(row))
    lines = [_SAVE.replace("WEIGHTS", str(len(tableau.dense))), *saved_weights(tableau)]
    lines.append(f"      LOOP for (int d = 0; d < SHOWN; d++) passed[d] = z[d] + hs * ({total});")
    return [
        *lines,
        *move_saved(shape, "put_at", "passed", "saved", "upcoming", "due"),
        "      upcoming -= counts(gone | due);",
        "    }",
    ]


def _estimate(tableau: Tableau) -> list[str]:
    lines = [f"    LOOP for (int d = 0; d < D; d++) e[d] = hs * ({weighted(tableau.error)});"]
    lines.append("    V ratio = norm(c, e, size);")
    if tableau.error_low:
        lines.append(f"    LOOP for (int d = 0; d < D; d++) e[d] = hs * ({weighted(tableau.error_low)});")
        lines.append("    V other = norm(c, e, size), both = sqrt_(ratio * ratio + real(0.01) * other * other);")
        lines.append("    ratio = ratio * ratio / maximum_(both, spread(SMALLEST));")
    return lines


_SIZE = "    LOOP for (int d = 0; d < D; d++) size[d] = maximum_(abs_(z[d]), abs_(z1[d]));"
_FIXED_RATIO = ["    V ratio = spread(0);", "    LOOP for (int d = 0; d < D; d++) ratio += abs_(z1[d] * 0);"]

_FIRST_STEP = """
FUNCTION T first_step(const Context &c, const V *z, const V *slope0, T span, int order) {
  V size[D], y[D], k[D];
  LOOP for (int d = 0; d < D; d++) size[d] = abs_(z[d]);
  T d0 = widen(norm(c, z, size)), d1 = widen(norm(c, slope0, size));
  T h0 = (d0 < 1e-5) | (d1 < 1e-5) ? time_of(1e-6) : 0.01 * d0 / d1;
  h0 = smaller(h0, absolute(span)) * sign_of(span);
  V hs = narrow(h0);
  LOOP for (int d = 0; d < D; d++) y[d] = z[d] + hs * slope0[d];
  slope(c, c.clock(h0), y, k);
  LOOP for (int d = 0; d < D; d++) k[d] = k[d] - slope0[d];
  T d2 = widen(norm(c, k, size)) / absolute(h0), steepest = larger(d1, d2);
  T calm = larger(absolute(h0) * 1e-3, time_of(1e-6));
  T h1 = steepest <= 1e-15 ? calm : power(0.01 / steepest, 1.0 / order);
  T h = smaller(100 * absolute(h0), h1);
  h = finite_or(h, absolute(h0));
  h = larger(h, 1e4 * EPSILON * absolute(span));
  return smaller(h, absolute(span)) * sign_of(span);
}
"""


_SAVE_START = """
  N upcoming = {};
  T direction = sign_of(t1);
  for (;;) {
    T at = saved_time(p, upcoming, c);
    TM there = valid(p, upcoming), gone = there & (at != at), due = there & (at == 0);
    if (!some(gone | due)) break;
PUT
    upcoming -= counts(gone | due);
  }"""


_SAVE = """
    for (T ahead = good & last ? t1 : t + h;;) {
      T at = saved_time(p, upcoming, c);
      TM there = good & valid(p, upcoming), gone = there & (at != at);
      TM due = there & (direction * at <= direction * ahead);
      if (!some(gone | due)) break;
      V sigma = narrow(due ? (at - t) / h : time_of(0)), w[WEIGHTS], passed[SHOWN];"""


_START = """
FUNCTION void solve_block(const Settings &p, Context &c) {
  V z[D], y[D], z1[D], e[D], size[D], first[D], k[S + 1][D];
  (void)y, (void)e, (void)size;
  c.t0 = p.t0 ? times(p.t0, c) : time_of(0);"""


_BEGIN = """
  T t1 = times(p.span, c), t = time_of(0);
  slope(c, c.clock(t), z, first);
  M sound = given;
  LOOP for (int d = 0; d < D; d++) sound &= is_finite(first[d]);
  TM alive = (t1 != 0) & wide(sound);
  N status = counts(not_(wide(given)) | ((t1 != 0) & not_(wide(sound)))) & NOT_FINITE, accepted = {}, rejected = {};
  V previous = spread(1), earlier = spread(1);"""


_LOOP = """
  for (int64_t attempt = 0; attempt < p.attempts && some(alive); attempt++) {
    T largest = larger(absolute(t), absolute(t1));
    T reach = absolute(h) * p.stretch;
    if (p.high < UNLIMITED) reach = smaller(reach, time_of(p.high * (1 + 1e-9)));
    if (p.dt) reach += number_of(accepted) * (EPSILON * largest);
    TM last = reach >= absolute(t1 - t);
    T planned = h;
    h = alive ? (last ? t1 - t : h) : time_of(0);
    V hs = narrow(h);"""


_ACCEPT = """
    TM good = alive & wide(ratio <= 1), bad = alive & not_(good);
    M moved = thin(good);
    T next = planned;
    TM stuck = bad;
    N failure = N{{}} + STEP_TOO_SMALL;
    if (!{fixed}) {{
      V positive = maximum_(ratio, spread(real(1e-10))), exponent = log_(positive) * real(p.now);
      if (p.before) exponent += log_(previous) * real(p.before);
      if (p.earlier) exponent += log_(earlier) * real(p.earlier);
      V factor = clamp_(real(p.safety) * exp_(exponent), spread(real(p.smallest)), spread(real(p.largest)));
      factor = choose(moved, factor, minimum_(factor, spread(real(p.safety))));
      factor = choose(is_finite(ratio), factor, spread(real(p.smallest)));
      next = c.limited(h * widen(factor));
      TM tiny = absolute(next) <= 10 * EPSILON * largest;
      if (p.low) {{
        TM least = absolute(h) <= p.low * (1 + 1e-9);
        failure = counts(least) ? N{{}} + MIN_DT : failure;
        tiny |= least;
      }}
      stuck = bad & tiny;
    }}
    failure = counts(wide(is_finite(ratio))) ? failure : N{{}} + NOT_FINITE;
{failure}
{save}
    TM done = good & last;
    record(p, t, h, z, good, accepted, c);
    t = done ? t1 : (good ? t + h : t);
    LOOP for (int d = 0; d < D; d++) z[d] = choose(moved, z1[d], z[d]);
    earlier = choose(moved, previous, earlier);
    previous = choose(moved, ratio, previous);
    h = next;
    alive &= not_(done | stuck);
    status = counts(stuck) ? failure : status;
    accepted -= counts(good);
    rejected -= counts(bad);"""


_FINISH = """
  status = counts(alive) ? N{} + MAX_STEPS : status;
  put(p.reached, t, c), put(p.size, h, c), put(p.status, status, c);
  put(p.accepted, accepted, c), put(p.rejected, rejected, c);
  put(p.nfe, (accepted + rejected) * (int32_t)S - counts(t1 != 0) * (p.dt ? 1 : 2), c);
  report(p, status, accepted, c);
}"""
