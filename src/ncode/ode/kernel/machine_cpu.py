"""A CPU: a block is as many samples as fit into a vector, chunks of blocks run on threads.

A block takes as long as its slowest sample. Backward knows how many steps each has, and puts equals side by side.
"""

from __future__ import annotations

import torch

from .driver_cpp import Machine, Work
from .math_cpp import prelude


def _prelude(dtype: torch.dtype, work: Work) -> str:
    return prelude(dtype)


_SETTINGS = """int64_t chunks, threads;
  void *tape;"""

_MEMORY = """
struct Place {
  int64_t batch, sample[W], present;  // the last block of a batch is filled with its last sample
  bool neighbours;  // whether the samples are those that solve put side by side
  void place(const Settings &p, int64_t block, const int64_t *order) {
    int64_t first = block * W;
    batch = p.batch, present = batch - first < W ? batch - first : W, neighbours = true;
    for (int l = 0; l < W; l++) {
      int64_t i = l < present ? first + l : batch - 1;
      sample[l] = order ? order[i] : i;
      neighbours &= l >= present || sample[l] == sample[0] / W * W + l;
    }
  }
};
static void load(V *to, const real *from, int64_t n, const Place &c) {
  for (int64_t e = 0; e < n; e++) for (int l = 0; l < W; l++) to[e][l] = from[c.sample[l] * n + e];
}
static void store(const V *from, real *to, int64_t n, const Place &c) {
  for (int l = 0; l < c.present; l++) for (int64_t e = 0; e < n; e++) to[c.sample[l] * n + e] = from[e][l];
}
static T times(const double *from, const Place &c) {
  T found;
  for (int l = 0; l < W; l++) found[l] = from[c.sample[l]];
  return found;
}
template <class X, class R> static void put(R *to, X values, const Place &c) {
  for (int l = 0; l < c.present; l++) to[c.sample[l]] = values[l];
}
static T saved_time(const Settings &p, N at, const Place &c) {
  T found;
  for (int l = 0; l < W; l++) found[l] = at[l] >= 0 && at[l] < p.times ? p.ts[c.sample[l] * p.times + at[l]] : 0;
  return found;
}
static TM valid(const Settings &p, N at) {
  return __builtin_convertvector((at >= 0) & (at < (int32_t)p.times), TM);
}
static void put_at(const V *from, real *to, int64_t n, N at, TM due, int64_t times, const Place &c) {
  for (int l = 0; l < c.present; l++)
    if (due[l]) for (int64_t e = 0; e < n; e++) to[(c.sample[l] * times + at[l]) * n + e] = from[e][l];
}
static void get_at(V *to, const real *from, int64_t n, N at, TM due, int64_t times, const Place &c) {
  for (int l = 0; l < W; l++) for (int64_t e = 0; e < n; e++)
    to[e][l] = from && due[l] && l < c.present ? from[(c.sample[l] * times + at[l]) * n + e] : 0;
}
static void report(const Settings &, N, N, const Place &) {}
struct Steps {  // of one block: step n of each sample, side by side
  int32_t count[W] = {};
  std::vector<double> t, h;
  std::vector<real> z;
};
typedef std::vector<Steps> Tape;
static void record(const Settings &p, T at, T step, const V *state, TM moved, N, const Place &c) {
  if (!p.tape) return;
  Steps &tape = (*(Tape *)p.tape)[c.sample[0] / W];
  for (int l = 0; l < W; l++) if (moved[l]) {
    size_t n = tape.count[l]++;
    size_t room = (n + 1) * W;
    if (room > tape.t.size()) tape.t.resize(room), tape.h.resize(room), tape.z.resize(room * D);
    tape.t[n * W + l] = at[l], tape.h[n * W + l] = step[l];
    for (int d = 0; d < D; d++) tape.z[(n * D + d) * W + l] = state[d][l];
  }
}
static int32_t recorded(const Settings &p, int64_t i) {
  return !p.active || p.active[i] ? (*(const Tape *)p.tape)[i / W].count[i % W] : 0;
}
static N recorded(const Settings &p, const Place &c) {
  N count;
  for (int l = 0; l < W; l++) count[l] = l < c.present ? recorded(p, c.sample[l]) : 0;
  return count;
}
static std::vector<int64_t> by_count(const Settings &p) {  // samples, those with the most steps first
  std::vector<int64_t> starts, order(p.batch);
  for (int64_t i = 0; i < p.batch; i++) {
    size_t n = recorded(p, i);
    if (n >= starts.size()) starts.resize(n + 1);
    starts[n]++;
  }
  int64_t before = 0;
  for (size_t n = starts.size(); n-- > 0;) std::swap(before, starts[n]), before += starts[n];
  for (int64_t i = 0; i < p.batch; i++) order[starts[recorded(p, i)]++] = i;
  return order;
}
static int32_t most(N count) {
  int32_t found = 0;
  for (int l = 0; l < W; l++) if (count[l] > found) found = count[l];
  return found;
}
static void recall(const Settings &p, int32_t n, T *t, T *h, V *z, const Place &c) {
  const Tape &all = *(const Tape *)p.tape;
  if (c.neighbours) {
    const Steps &tape = all[c.sample[0] / W];
    memcpy(t, &tape.t[(size_t)n * W], sizeof *t);
    memcpy(h, &tape.h[(size_t)n * W], sizeof *h);
    memcpy(z, &tape.z[(size_t)n * D * W], D * sizeof *z);
    return;
  }
  for (int l = 0; l < W; l++) {
    const Steps &tape = all[c.sample[l] / W];
    size_t lane = c.sample[l] % W, at = n < tape.count[lane] ? n : 0;  // a sample without steps stands still at 0
    bool any = tape.count[lane];
    (*t)[l] = any ? tape.t[at * W + lane] : 0, (*h)[l] = any ? tape.h[at * W + lane] : 0;
    for (int d = 0; d < D; d++) z[d][l] = any ? tape.z[(at * D + d) * W + lane] : 0;
  }
}
static TM before(int32_t n, N count) { return __builtin_convertvector(n < count, TM); }
template <class F> static void run_chunks(int64_t chunks, int64_t threads, F chunk) {
  if (threads > chunks) threads = chunks;
  auto work = [&](int64_t first) { for (int64_t i = first; i < chunks; i += threads) chunk(i); };
  std::vector<std::thread> others;
  for (int64_t i = 1; i < threads; i++) others.emplace_back(work, i);
  work(0);
  for (auto &it : others) it.join();
}
"""

_RUN = """
extern "C" int NAME(const Settings *p) {
  try {
    int64_t blocks = (p->batch + W - 1) / W;
    ORDER
    run_chunks(p->chunks, p->threads, [&](int64_t chunk) {
      Context *c = new (std::align_val_t(128)) Context();
      c->prepare(*p);
      for (int64_t b = chunk; b < blocks; b += p->chunks) {
        c->place(*p, b, order.data());
        NAME_block(*p, *c);
      }
      FINISH
      operator delete(c, std::align_val_t(128));
    });
  } catch (const std::exception &) { return 1; }
  return 0;
}
"""

_TAPE = """
extern "C" void *make_tape(int64_t batch) { return new (std::nothrow) Tape((batch + W - 1) / W); }
extern "C" void free_tape(void *tape) { delete (Tape *)tape; }
"""

_FINISH = """for (int e = 0; e < SUMS; e++) {
        real total = 0;
        for (int l = 0; l < W; l++) total += c->total[e][l];
        p->sums[chunk * SUMS + e] = total;
      }"""

_AS_GIVEN = "std::vector<int64_t> order;"
_BY_COUNT = "std::vector<int64_t> order = by_count(*p);"


def _run(name: str, order: str, finish: str) -> str:
    return _RUN.replace("NAME", name).replace("ORDER", order).replace("FINISH", finish)


CPU = Machine(
    prelude=_prelude,
    settings=_SETTINGS,
    memory=_MEMORY,
    run_forward=_run("solve", _AS_GIVEN, "") + _TAPE,
    run_backward=_run("pull", _BY_COUNT, _FINISH),
    keeps_stages=True,
)
