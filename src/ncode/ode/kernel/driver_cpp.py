"""What the C++ sources of a solve and of its pullback share: settings, the samples of a block, and the tape.

The samples of a block stand side by side in vectors; one that has finished stands still until the block has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..tableau import Tableau
from .emit_cpp import Printer
from .ir import Buffer, Program, View
from .lower import Lowered


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


def sizes(shape: Shape) -> str:
    sizes = f"#define SIZES {{{', '.join(map(str, shape.states))}}}"
    return f"{sizes}\nenum {{ D = {sum(shape.states)}, S = {shape.tableau.stages}, LEAVES = {len(shape.states)} }};"


def context(lowered: Lowered, shape: Shape, program: Program | None = None) -> str:
    """What a block of samples reads: shared tensors, its constants, and the settings of the solve."""
    fields = [f"const real *{buffer.name};" for buffer in lowered.shared.values()]
    fields += [f"V theta{i}[{max(size, 1)}];" for i, size in enumerate(shape.controls)]
    if program is not None:
        fields.append("Stage stage[S];")
        fields += [f"V sum{i}[{max(term.factors[0].size, 1)}];" for i, term in enumerate(program.terms)]
    shared = [f"{buffer.name} = (const real *)p.shared[{i}];" for i, buffer in enumerate(lowered.shared.values())]
    return _CONTEXT.format(fields="\n  ".join(fields), shared="\n    ".join(shared))


def places_of(lowered: Lowered, shape: Shape, stage: str = "") -> dict[Buffer, str]:
    """What inputs are called."""
    inputs, offsets, leaves = lowered.inputs, shape.offsets, len(shape.states)
    places = {inputs[0]: f"{stage}t"}
    places |= {inputs[1 + i]: f"({stage}z + {offsets[i]})" for i in range(leaves)}
    places |= {inputs[1 + leaves + i]: f"c.theta{i}" for i in range(len(shape.controls))}
    gradients = inputs[1 + leaves + len(shape.controls) :]
    places |= {buffer: f"({stage}g + {offsets[i]})" for i, buffer in enumerate(gradients)}
    return places | {buffer: f"c.{buffer.name}" for buffer in lowered.shared.values()}


def print_results(printer: Printer, name: str, results: Sequence[View | float], shape: Shape) -> None:
    for i, result in enumerate(results):
        own = result.shape if isinstance(result, View) else (shape.states[i],)
        printer.copy(f"({name} + {shape.offsets[i]})", result, own)


def load_controls(lowered: Lowered, shape: Shape) -> str:
    own = [f"  load(c.theta{i}, (const real *)p.theta[{i}], {n}, c.sample);" for i, n in enumerate(shape.controls)]
    return "\n".join(own)


def weighted(row: Sequence[float], name: str = "k[{}][d]") -> str:
    parts = [f"real({w!r}) * {name.format(i)}" for i, w in enumerate(row) if w]
    return " + ".join(parts) if parts else "all(0)"


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

TAPE = """
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
