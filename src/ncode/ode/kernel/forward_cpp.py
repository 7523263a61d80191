"""The C++ source of a solve: the loop of `integrate` for a block of samples.

Every line of `_ACCEPT` and `_FIRST_STEP` has its counterpart in integrate.py and step.py, with the names it has there.
"""

from __future__ import annotations

import torch

from .driver_cpp import TAPE, Shape, context, load_controls, places_of, print_results, sizes, weighted
from .emit_cpp import Printer
from .lower import Lowered
from .math_cpp import prelude


def forward_source(lowered: Lowered, shape: Shape, dtype: torch.dtype) -> str:
    """A solve, `solve`, that leaves a tape if it is asked to."""
    tableau, adaptive = shape.tableau, not shape.fixed
    end = adaptive and tableau.error_needs_end
    lines = [prelude(dtype), sizes(shape), context(lowered, shape), TAPE, _slope(lowered, shape)]
    lines += [_norm(shape), _FIRST_STEP if adaptive else "", _START, "  V k[S + 1][D];", load_controls(lowered, shape)]
    lines.append(_BEGIN)
    if adaptive:
        order = tableau.error_order + 1
        lines.append(f"  T h = c.limited(first_step(c, z, first, t1, {order}));")
    else:
        lines.append("  T h = c.dt * sign_of(t1);")
    lines += [_LOOP, *_stages(shape, end), _attempt(shape, end), _FINISH, _RUN_FORWARD]
    return "\n".join(lines)


def _slope(lowered: Lowered, shape: Shape) -> str:
    printer = Printer(places_of(lowered, shape), [view.buffer for view in lowered.program.results])
    printer.block(lowered.program.statements)
    print_results(printer, "k", lowered.program.slopes, shape)
    body = "\n  ".join(printer.lines)
    return f"static void slope(const Context &c, V time, const V *z, V *k) {{\n  V t[1] = {{time}};\n  {body}\n}}"


def _norm(shape: Shape) -> str:
    """The largest norm of the parts of z."""
    lines = ["INLINE V norm(const Context &c, const V *e, const V *size) {", "  V largest = all(0);"]
    for number, (start, stop) in enumerate(shape.parts):
        lines.append("  { V sum = all(0);")
        lines += [
            f"  for (int d = {shape.offsets[leaf]}; d < {shape.offsets[leaf + 1]}; d++) {{ V q = e[d] /"
            f" (size[d] * c.rtol[{leaf}] + c.atol[{leaf}]); sum += q * q; }}"
            for leaf in range(start, stop)
        ]
        count = shape.offsets[stop] - shape.offsets[start]
        value = f"sqrt_(sum / {count})"
        lines.append(f"  largest = {value if number == 0 else f'maximum_(largest, {value})'}; }}")
    return "\n".join([*lines, "  return largest;", "}"])


def _stages(shape: Shape, end: bool) -> list[str]:
    tableau, lines = shape.tableau, []
    if end:
        lines.append("    memcpy(k[0], first, sizeof first);")
    else:
        lines.append("    slope(c, c.clock(t), z, k[0]);")
    for i in range(1, tableau.stages):
        lines.append(f"    for (int d = 0; d < D; d++) y[d] = z[d] + hs * ({weighted(tableau.a[i])});")
        lines.append(f"    slope(c, c.clock(t + {tableau.c[i]!r} * h), y, k[{i}]);")
    lines.append(f"    for (int d = 0; d < D; d++) z1[d] = z[d] + hs * ({weighted(tableau.b)});")
    if end:
        lines.append(f"    slope(c, c.clock(t + h), z1, k[{tableau.stages}]);")
    return lines


def _attempt(shape: Shape, end: bool) -> str:
    tableau, lines = shape.tableau, []
    if shape.fixed:
        lines += ["    V ratio = all(0);", "    for (int d = 0; d < D; d++) ratio += abs_(z1[d] * 0);"]
    else:
        lines.append("    for (int d = 0; d < D; d++) size[d] = maximum_(abs_(z[d]), abs_(z1[d]));")
        lines.append(f"    for (int d = 0; d < D; d++) e[d] = hs * ({weighted(tableau.error)});")
        lines.append("    V ratio = norm(c, e, size);")
        if tableau.error_low:
            lines.append(f"    for (int d = 0; d < D; d++) e[d] = hs * ({weighted(tableau.error_low)});")
            lines.append("    V other = norm(c, e, size), both = sqrt_(ratio * ratio + real(0.01) * other * other);")
            lines.append("    ratio = ratio * ratio / maximum_(both, all(SMALLEST));")
    lines.append(_ACCEPT.format(fixed="true" if shape.fixed else "false", last=tableau.stages if end else 0))
    if end:
        lines.append(f"    for (int d = 0; d < D; d++) first[d] = choose(moved, k[{tableau.stages}][d], first[d]);")
    return "\n".join(lines)


_FIRST_STEP = """
static T first_step(const Context &c, const V *z, const V *slope0, T span, int order) {
  V size[D], y[D], k[D];
  for (int d = 0; d < D; d++) size[d] = abs_(z[d]);
  T d0 = widen(norm(c, z, size)), d1 = widen(norm(c, slope0, size));
  T h0 = (d0 < 1e-5) | (d1 < 1e-5) ? time_of(1e-6) : 0.01 * d0 / d1;
  h0 = smaller(h0, absolute(span)) * sign_of(span);
  V hs = narrow(h0);
  for (int d = 0; d < D; d++) y[d] = z[d] + hs * slope0[d];
  slope(c, c.clock(h0), y, k);
  for (int d = 0; d < D; d++) k[d] = k[d] - slope0[d];
  T d2 = widen(norm(c, k, size)) / absolute(h0), steepest = larger(d1, d2);
  T calm = larger(absolute(h0) * 1e-3, time_of(1e-6));
  T h1 = steepest <= 1e-15 ? calm : power(0.01 / steepest, 1.0 / order);
  T h = smaller(100 * absolute(h0), h1);
  h = finite_or(h, absolute(h0));
  h = larger(h, 1e4 * std::numeric_limits<double>::epsilon() * absolute(span));
  return smaller(h, absolute(span)) * sign_of(span);
}
"""


_START = """
static void solve_block(const Settings &p, Context &c, int64_t block) {
  c.place(p, block);
  V z[D], y[D], z1[D], e[D], size[D], first[D];
  (void)e, (void)size;
  Steps *tape = p.tape ? &(*(Tape *)p.tape)[block] : nullptr;"""


_BEGIN = """
  T t1;
  for (int l = 0; l < W; l++) t1[l] = p.span[c.sample[l]];
  { int64_t from = 0;
    const int64_t sizes[LEAVES] = SIZES;
    for (int i = 0; i < LEAVES; i++) load(z + from, (const real *)p.z0[i], sizes[i], c.sample), from += sizes[i]; }
  T t = time_of(0);
  slope(c, c.clock(t), z, first);
  M sound = ~M{};
  for (int d = 0; d < D; d++) sound &= finite(first[d]);
  TM alive = (t1 != 0) & widen(sound);
  N status = counts((t1 != 0) & ~widen(sound)) & 3, accepted = {}, rejected = {};
  V previous = all(1), earlier = all(1);"""


_LOOP = """
  for (int64_t attempt = 0; attempt < p.attempts && any(alive); attempt++) {
    T largest = larger(absolute(t), absolute(t1));
    T reach = absolute(h) * p.stretch;
    if (p.high < std::numeric_limits<double>::infinity()) reach = smaller(reach, time_of(p.high * (1 + 1e-9)));
    if (p.dt) reach += __builtin_convertvector(accepted, T) * (std::numeric_limits<double>::epsilon() * largest);
    TM last = reach >= absolute(t1 - t);
    T planned = h;
    h = alive ? (last ? t1 - t : h) : time_of(0);
    V hs = narrow(h);"""


_ACCEPT = """
    TM good = alive & widen(ratio <= 1), bad = alive & ~good;
    M moved = narrow(good);
    T next = planned;
    TM stuck = bad;
    N failure = N{{}} + 2;
    if (!{fixed}) {{
      V positive = maximum_(ratio, all(real(1e-10))), exponent = log_(positive) * real(p.now);
      if (p.before) exponent += log_(previous) * real(p.before);
      if (p.earlier) exponent += log_(earlier) * real(p.earlier);
      V factor = clamp_(real(p.safety) * exp_(exponent), all(real(p.smallest)), all(real(p.largest)));
      factor = choose(moved, factor, minimum_(factor, all(real(p.safety))));
      factor = choose(finite(ratio), factor, all(real(p.smallest)));
      next = c.limited(h * widen(factor));
      TM tiny = absolute(next) <= 10 * std::numeric_limits<double>::epsilon() * largest;
      if (p.low) {{
        TM least = absolute(h) <= p.low * (1 + 1e-9);
        failure = counts(least) ? N{{}} + 4 : failure;
        tiny |= least;
      }}
      stuck = bad & tiny;
    }}
    failure = counts(widen(finite(ratio))) ? failure : N{{}} + 3;
    TM done = good & last;
    if (tape) tape->add(t, h, z, good);
    t = done ? t1 : (good ? t + h : t);
    for (int d = 0; d < D; d++) z[d] = choose(moved, z1[d], z[d]);
    earlier = choose(moved, previous, earlier);
    previous = choose(moved, ratio, previous);
    h = next;
    alive &= ~(done | stuck);
    status = counts(stuck) ? failure : status;
    accepted -= counts(good);
    rejected -= counts(bad);"""


_FINISH = """
  }
  status = counts(alive) ? N{} + 1 : status;
  { int64_t from = 0;
    const int64_t sizes[LEAVES] = SIZES;
    for (int i = 0; i < LEAVES; i++) store(z + from, (real *)p.z1[i], sizes[i], c.first, p.batch), from += sizes[i]; }
  for (int l = 0; l < W && c.first + l < p.batch; l++) {
    int64_t i = c.first + l;
    p.reached[i] = t[l], p.size[i] = h[l];
    p.status[i] = status[l], p.accepted[i] = accepted[l], p.rejected[i] = rejected[l];
    p.nfe[i] = (t1[l] != 0) * (p.dt ? 1 : 2) + (accepted[l] + rejected[l]) * S;
  }
}"""


_RUN_FORWARD = """
extern "C" int solve(const Settings *p) {
  try {
    int64_t blocks = (p->batch + W - 1) / W;
    run_chunks(p->chunks, p->threads, [&](int64_t chunk) {
      Context *c = new (std::align_val_t(128)) Context();
      c->prepare(*p);
      for (int64_t b = blocks * chunk / p->chunks; b < blocks * (chunk + 1) / p->chunks; b++) solve_block(*p, *c, b);
      operator delete(c, std::align_val_t(128));
    });
  } catch (const std::exception &) { return 1; }
  return 0;
}
extern "C" void *make_tape(int64_t batch) { return new (std::nothrow) Tape((batch + W - 1) / W); }
extern "C" void free_tape(void *tape) { delete (Tape *)tape; }
"""
