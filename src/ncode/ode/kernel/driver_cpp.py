"""The C++ source of whole solves: the loop of `integrate` for a block of samples, and the walk back along its tape.

Every line of `_attempt` and `_FIRST_STEP` has its counterpart in integrate.py and step.py, and names it has there.
The samples of a block stand side by side in vectors; one that has finished stands still until the block has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..tableau import Tableau
from .emit_cpp import Printer, array_index, collapse, lane_buffers
from .ir import Buffer, Program, View, reads
from .lower import Lowered
from .math_cpp import prelude


@dataclass(frozen=True)
class Shape:
    """What the source of a solve depends on, apart from its program: numbers of elements, and the method."""

    states: tuple[int, ...]  # elements of each leaf of z
    parts: tuple[tuple[int, int], ...]  # leaves whose errors have one norm: from, to
    controls: tuple[int, ...]  # elements of each constant of a sample
    tableau: Tableau
    fixed: bool
    shifted: bool  # whether t0 is not 0

    @property
    def offsets(self) -> list[int]:
        return [sum(self.states[:i]) for i in range(len(self.states) + 1)]


def forward_source(lowered: Lowered, shape: Shape, dtype: torch.dtype) -> str:
    """A solve, `solve`, that leaves a tape if it is asked to."""
    tableau, adaptive = shape.tableau, not shape.fixed
    end = adaptive and tableau.error_needs_end
    lines = [prelude(dtype), _sizes(shape), _context(lowered, shape), _TAPE, _slope(lowered, shape)]
    lines += [_norm(shape), _FIRST_STEP if adaptive else "", _START, "  V k[S + 1][D];", _load(lowered, shape)]
    lines.append(_BEGIN)
    if adaptive:
        order = tableau.error_order + 1
        lines.append(f"  T h = c.limited(first_step(c, z, first, t1, {order}));")
    else:
        lines.append("  T h = c.dt * sign_of(t1);")
    lines += [_LOOP, *_stages(shape, end), _attempt(shape, end), _FINISH, _RUN_FORWARD]
    return "\n".join(lines)


def backward_source(lowered: Lowered, shape: Shape, dtype: torch.dtype) -> str:
    """The pullback of a solve, `pull`, along its tape."""
    program = lowered.program
    lines = [prelude(dtype), _sizes(shape), _stage(program), _context(lowered, shape, program), _TAPE]
    lines += [_primal(lowered, shape), _adjoint(lowered, shape), _PULL_START, _load(lowered, shape), _PULL_BEGIN]
    lines += [*_replay(shape), *_pull_stages(lowered, shape), _PULL_UPDATE]
    if lowered.graph.wanted is not None and lowered.graph.wanted.time:
        lines.append(_PULL_TIMES)
    lines += [*_mask(lowered, shape), *_accumulate(lowered, shape), "  }", *_store(program, shape)]
    lines += [_PULL_END, _sums(program), _RUN_BACKWARD]
    return "\n".join(lines)


def sum_sizes(program: Program) -> list[int]:
    """How many elements each sum over samples has."""
    return [term.factors[0].size for term in program.shared_terms]


def _sizes(shape: Shape) -> str:
    sizes = f"#define SIZES {{{', '.join(map(str, shape.states))}}}"
    return f"{sizes}\nenum {{ D = {sum(shape.states)}, S = {shape.tableau.stages}, LEAVES = {len(shape.states)} }};"


def _context(lowered: Lowered, shape: Shape, program: Program | None = None) -> str:
    """What a block of samples reads: shared tensors, its constants, and the settings of the solve."""
    fields = [f"const real *{buffer.name};" for buffer in lowered.shared.values()]
    fields += [f"V theta{i}[{max(size, 1)}];" for i, size in enumerate(shape.controls)]
    if program is not None:
        fields.append("Stage stage[S];")
        fields += [f"V sum{i}[{max(term.factors[0].size, 1)}];" for i, term in enumerate(program.terms)]
    shared = [f"{buffer.name} = (const real *)p.shared[{i}];" for i, buffer in enumerate(lowered.shared.values())]
    return _CONTEXT.format(fields="\n  ".join(fields), shared="\n    ".join(shared))


def _places(lowered: Lowered, shape: Shape, stage: str = "") -> dict[Buffer, str]:
    """What inputs are called."""
    inputs, offsets, leaves = lowered.inputs, shape.offsets, len(shape.states)
    places = {inputs[0]: f"{stage}t"}
    places |= {inputs[1 + i]: f"({stage}z + {offsets[i]})" for i in range(leaves)}
    places |= {inputs[1 + leaves + i]: f"c.theta{i}" for i in range(len(shape.controls))}
    gradients = inputs[1 + leaves + len(shape.controls) :]
    places |= {buffer: f"({stage}g + {offsets[i]})" for i, buffer in enumerate(gradients)}
    return places | {buffer: f"c.{buffer.name}" for buffer in lowered.shared.values()}


def _results(printer: Printer, name: str, results: Sequence[View | float], shape: Shape) -> None:
    for i, result in enumerate(results):
        own = result.shape if isinstance(result, View) else (shape.states[i],)
        printer.copy(f"({name} + {shape.offsets[i]})", result, own)


def _slope(lowered: Lowered, shape: Shape) -> str:
    printer = Printer(_places(lowered, shape), [view.buffer for view in lowered.program.results])
    printer.block(lowered.program.statements)
    _results(printer, "k", lowered.program.slopes, shape)
    body = "\n  ".join(printer.lines)
    return f"static void slope(const Context &c, V time, const V *z, V *k) {{\n  V t[1] = {{time}};\n  {body}\n}}"


def _load(lowered: Lowered, shape: Shape) -> str:
    own = [f"  load(c.theta{i}, (const real *)p.theta[{i}], {n}, c.sample);" for i, n in enumerate(shape.controls)]
    return "\n".join(own)


def _norm(shape: Shape) -> str:
    """The largest norm of the parts of z."""
    lines = ["INLINE V norm(const Context &c, const V *e, const V *size) {", "  V largest = all(0);"]
    for number, (start, stop) in enumerate(shape.parts):
        lines.append("  { V sum = all(0);")
        for leaf in range(start, stop):
            lines.append(
                f"  for (int d = {shape.offsets[leaf]}; d < {shape.offsets[leaf + 1]}; d++) {{ V q = e[d] /"
                f" (size[d] * c.rtol[{leaf}] + c.atol[{leaf}]); sum += q * q; }}"
            )
        count = shape.offsets[stop] - shape.offsets[start]
        value = f"sqrt_(sum / {count})"
        lines.append(f"  largest = {value if number == 0 else f'maximum_(largest, {value})'}; }}")
    return "\n".join([*lines, "  return largest;", "}"])


def _weighted(row: Sequence[float], name: str = "k[{}][d]") -> str:
    parts = [f"real({w!r}) * {name.format(i)}" for i, w in enumerate(row) if w]
    return " + ".join(parts) if parts else "all(0)"


def _stages(shape: Shape, end: bool) -> list[str]:
    tableau, lines = shape.tableau, []
    if end:
        lines.append("    memcpy(k[0], first, sizeof first);")
    else:
        lines.append("    slope(c, c.clock(t), z, k[0]);")
    for i in range(1, tableau.stages):
        lines.append(f"    for (int d = 0; d < D; d++) y[d] = z[d] + hs * ({_weighted(tableau.a[i])});")
        lines.append(f"    slope(c, c.clock(t + {tableau.c[i]!r} * h), y, k[{i}]);")
    lines.append(f"    for (int d = 0; d < D; d++) z1[d] = z[d] + hs * ({_weighted(tableau.b)});")
    if end:
        lines.append(f"    slope(c, c.clock(t + h), z1, k[{tableau.stages}]);")
    return lines


def _attempt(shape: Shape, end: bool) -> str:
    tableau, lines = shape.tableau, []
    if shape.fixed:
        lines += ["    V ratio = all(0);", "    for (int d = 0; d < D; d++) ratio += abs_(z1[d] * 0);"]
    else:
        lines.append("    for (int d = 0; d < D; d++) size[d] = maximum_(abs_(z[d]), abs_(z1[d]));")
        lines.append(f"    for (int d = 0; d < D; d++) e[d] = hs * ({_weighted(tableau.error)});")
        lines.append("    V ratio = norm(c, e, size);")
        if tableau.error_low:
            lines.append(f"    for (int d = 0; d < D; d++) e[d] = hs * ({_weighted(tableau.error_low)});")
            lines.append("    V other = norm(c, e, size), both = sqrt_(ratio * ratio + real(0.01) * other * other);")
            lines.append("    ratio = ratio * ratio / maximum_(both, all(SMALLEST));")
    lines.append(_ACCEPT.format(fixed="true" if shape.fixed else "false", last=tableau.stages if end else 0))
    if end:
        lines.append(f"    for (int d = 0; d < D; d++) first[d] = choose(moved, k[{tableau.stages}][d], first[d]);")
    return "\n".join(lines)


# The pullback


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
    return _places(lowered, shape, "s.") | own


def _primal(lowered: Lowered, shape: Shape) -> str:
    printer = Printer(_staged(lowered, shape))
    printer.block(lowered.program.statements)
    _results(printer, "k", lowered.program.slopes, shape)
    return _function("primal", "V *k", printer)


def _adjoint(lowered: Lowered, shape: Shape) -> str:
    program = lowered.program
    results = [view.buffer for view in (*program.state_gradients, program.time_gradient) if isinstance(view, View)]
    printer = Printer(_staged(lowered, shape), results)
    printer.block(program.adjoint)
    _results(printer, "m", program.state_gradients, shape)
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
        total = f"z[d] + hs * ({_weighted(tableau.a[i])})" if any(tableau.a[i]) else "z[d]"
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
        lines.append(f"    for (int d = 0; d < D; d++) {{ V u = {' + '.join(parts)}; c.stage[{i}].g[d] = hs * u;{dot} }}")
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
        lines.append(f"  for (int e = 0; e < {size}; e++) {{ V v = c.sum{start + number}[e]; {total} out[{offset} + e] = r; }}")
        offset += size
    lines.append("  (void)c; (void)out;")
    return "\n".join([*lines, "}", f"enum {{ SUMS = {offset} }};"])


_CONTEXT = """
struct Settings {{  // as run.py fills it
  const void *const *z0, *const *theta, *const *shared;
  void *const *z1, *const *theta_gradient;
  const double *t0, *span;
  double *reached, *size, *t0_gradient, *span_gradient;
  int32_t *status, *accepted, *rejected, *nfe;
  const int32_t *active;
  real *sums;
  const double *rtol, *atol;
  double dt, low, high, stretch, safety, smallest, largest, now, before, earlier;
  int64_t batch, attempts, chunks, threads;
  void *tape;
}};
struct Context {{
  {fields}
  T t0;
  real rtol[LEAVES], atol[LEAVES];
  double dt, low, high;
  int64_t first, sample[W];
  void prepare(const Settings &p) {{
    {shared}
    for (int i = 0; i < LEAVES; i++) rtol[i] = p.rtol[i], atol[i] = p.atol[i] > SMALLEST ? p.atol[i] : SMALLEST;
    dt = p.dt, low = p.low, high = p.high;
  }}
  void place(const Settings &p, int64_t block) {{
    first = block * W;
    for (int l = 0; l < W; l++) {{
      sample[l] = first + l < p.batch ? first + l : p.batch - 1;
      t0[l] = p.t0 ? p.t0[sample[l]] : 0;
    }}
  }}
  INLINE_MEMBER V clock(T t) const {{ return narrow(t + t0); }}
  INLINE_MEMBER T limited(T h) const {{
    if (low == 0 && high == std::numeric_limits<double>::infinity()) return h;
    T a = absolute(h);
    a = smaller(larger(a, time_of(low)), time_of(high));
    return h < 0 ? -a : a;
  }}
}};
static void load(V *to, const real *from, int64_t n, const int64_t *sample) {{
  for (int64_t e = 0; e < n; e++) for (int l = 0; l < W; l++) to[e][l] = from[sample[l] * n + e];
}}
static void store(const V *from, real *to, int64_t n, int64_t first, int64_t batch) {{
  for (int l = 0; l < W && first + l < batch; l++) for (int64_t e = 0; e < n; e++) to[(first + l) * n + e] = from[e][l];
}}
""".replace("INLINE_MEMBER", "inline")

_TAPE = """
struct Steps {  // of one block: step n of each sample, side by side
  int32_t count[W] = {};
  std::vector<double> t, h;
  std::vector<real> z;
  void add(T at, T step, const V *state, TM moved) {
    for (int l = 0; l < W; l++) if (moved[l]) {
      size_t n = count[l]++;
      if ((n + 1) * W > t.size()) t.resize((n + 1) * W), h.resize((n + 1) * W), z.resize((n + 1) * D * W);
      t[n * W + l] = at[l], h[n * W + l] = step[l];
      for (int d = 0; d < D; d++) z[(n * D + d) * W + l] = state[d][l];
    }
  }
};
typedef std::vector<Steps> Tape;
template <class F> static void run_chunks(int64_t chunks, int64_t threads, F chunk) {
  if (threads > chunks) threads = chunks;
  auto work = [&](int64_t first) { for (int64_t i = first; i < chunks; i += threads) chunk(i); };
  std::vector<std::thread> others;
  for (int64_t i = 1; i < threads; i++) others.emplace_back(work, i);
  work(0);
  for (auto &it : others) it.join();
}
"""

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
