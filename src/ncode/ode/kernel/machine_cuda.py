"""A CUDA GPU: one thread per sample, its state and stages in registers, the tape in memory of the caller.

Threads beyond the batch repeat its last sample and write nothing, so that all threads of a warp can exchange sums.
"""

from __future__ import annotations

import torch

from .driver_cpp import Machine, Work
from .math_cuda import prelude

MOST_INLINE = 4000  # operations of a step up to which its loops are unrolled into registers,
LARGEST_INLINE = 48  # if no array has more elements: on an H200 others were twice as slow unrolled


def _prelude(dtype: torch.dtype, work: Work) -> str:
    return prelude(dtype, work.operations <= MOST_INLINE and work.largest <= LARGEST_INLINE)


_SETTINGS = """int64_t capacity;  // steps of a sample that the tape has room for; 0 without a tape
  double *tape_times;  // t and h of each step, (capacity, 2, batch)
  real *tape_states;  // (capacity, D, batch)
  int32_t *flags;  // how many samples failed, and the most steps that one took"""

_MEMORY = """
struct Place {
  int64_t sample, batch;
  bool present;
  FUNCTION_MEMBER void place(const Settings &p) {
    int64_t thread = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    present = thread < p.batch, sample = present ? thread : p.batch - 1, batch = p.batch;
  }
};
INLINE void load(V *to, const real *from, int n, const Place &c) {
  LOOP for (int e = 0; e < n; e++) to[e] = from[c.sample * n + e];
}
INLINE void store(const V *from, real *to, int n, const Place &c) {
  if (c.present) LOOP for (int e = 0; e < n; e++) to[c.sample * n + e] = from[e];
}
INLINE T times(const double *from, const Place &c) { return from[c.sample]; }
template <class X, class R> INLINE void put(R *to, X value, const Place &c) { if (c.present) to[c.sample] = value; }
INLINE TM valid(const Settings &p, N at) { return at >= 0 && at < p.times; }
INLINE T saved_time(const Settings &p, N at, const Place &c) {
  return valid(p, at) ? p.ts[c.sample * p.times + at] : 0;
}
INLINE void put_at(const V *from, real *to, int n, N at, TM due, int64_t times, const Place &c) {
  if (due && c.present) LOOP for (int e = 0; e < n; e++) to[(c.sample * times + at) * n + e] = from[e];
}
INLINE void get_at(V *to, const real *from, int n, N at, TM due, int64_t times, const Place &c) {
  LOOP for (int e = 0; e < n; e++) to[e] = from && due ? from[(c.sample * times + at) * n + e] : 0;
}
template <class X> INLINE X over_lanes(X value, bool largest) {  // the sum, or the largest, over the threads of a warp
#ifdef __CUDACC__
  for (int far = 16; far; far >>= 1) {
    X other = __shfl_xor_sync(0xffffffff, value, far);
    value = largest ? (other > value ? other : value) : value + other;
  }
#endif
  return value;
}
INLINE void raise_flag(int32_t *flag, int32_t value, bool largest) {
#ifdef __CUDACC__
  if (largest) atomicMax(flag, value); else atomicAdd(flag, value);
#else
  *flag = largest ? (value > *flag ? value : *flag) : *flag + value;
#endif
}
INLINE void report(const Settings &p, N status, N accepted, const Place &c) {
  N failed = over_lanes<N>(c.present && status != 0, false), steps = over_lanes<N>(accepted, true);
  if (threadIdx.x % LANES) return;
  if (failed) raise_flag(p.flags, failed, false);
  raise_flag(p.flags + 1, steps, true);
}
INLINE void record(const Settings &p, T t, T h, const V *z, TM moved, N n, const Place &c) {
  if (!moved || !c.present || n >= p.capacity) return;
  double *at = p.tape_times + 2 * n * c.batch + c.sample;
  at[0] = t, at[c.batch] = h;
  LOOP for (int d = 0; d < D; d++) p.tape_states[((int64_t)n * D + d) * c.batch + c.sample] = z[d];
}
INLINE N recorded(const Settings &p, const Place &c) {
  return c.present && (!p.active || p.active[c.sample]) ? p.accepted[c.sample] : 0;
}
INLINE int32_t most(N count) { return count; }
INLINE TM before(int32_t n, N count) { return n < count; }
INLINE void recall(const Settings &p, int32_t n, T *t, T *h, V *z, const Place &c) {
  const double *at = p.tape_times + 2 * (int64_t)n * c.batch + c.sample;
  *t = at[0], *h = at[c.batch];
  LOOP for (int d = 0; d < D; d++) z[d] = p.tape_states[((int64_t)n * D + d) * c.batch + c.sample];
}
"""

_RUN_FORWARD = """
KERNEL void solve(const Settings p) {
  Context c;
  c.prepare(p);
  c.place(p);
  solve_block(p, c);
}
"""

_RUN_BACKWARD = """
KERNEL void pull(const Settings p) {
  Context c;
  c.prepare(p);
  c.place(p);
  pull_block(p, c);
  int64_t group = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / LANES;
  LOOP for (int e = 0; e < SUMS; e++) {
    V total = over_lanes<V>(c.total[e], false);
    if (threadIdx.x % LANES == 0) p.sums[group * SUMS + e] = total;
  }
}
"""

_ON_A_CPU = """
#ifndef __CUDACC__
extern "C" int NAME_on_cpu(const Settings *p) {  // one thread after another, for tests
  blockDim.x = 1, threadIdx.x = 0;
  for (int64_t i = 0; i < p->batch; i++) blockIdx.x = i, NAME(*p);
  return 0;
}
#endif
"""

CUDA = Machine(
    prelude=_prelude,
    settings=_SETTINGS,
    memory=_MEMORY,
    run_forward=_RUN_FORWARD + _ON_A_CPU.replace("NAME", "solve"),
    run_backward=_RUN_BACKWARD + _ON_A_CPU.replace("NAME", "pull"),
    keeps_stages=False,
)
