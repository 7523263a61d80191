"""Arithmetic for the printer on a CUDA GPU: the names of math_cpp.py, for one sample per thread.

Without a CUDA compiler the same source is plain C++, which runs one thread after another: so tests run it on a CPU.
"""

from __future__ import annotations

import torch

from .math_cpp import COMMON


def prelude(dtype: torch.dtype, inline: bool) -> str:
    """Types and functions for one precision; `inline` unrolls loops, so that arrays become registers."""
    real = "float" if dtype == torch.float32 else "double"
    limits = _SINGLE if dtype == torch.float32 else _DOUBLE
    macros = _INLINE if inline else _CALLS
    functions = [f"INLINE V {name}_(V x) {{ return {name}(x); }}" for name in _FUNCTIONS]
    return "\n".join([_HEADERS, f"typedef {real} real;", macros, _TYPES, limits, *functions, _BODY, COMMON])


_FUNCTIONS = (
    *("exp", "expm1", "log", "log1p", "log2", "log10", "tanh", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "asinh", "acosh", "atanh", "erf", "erfc", "floor", "ceil", "trunc"),
)

_HEADERS = """
#ifdef __CUDACC__
#define DEVICE __device__
#define KERNEL extern "C" __global__
enum { LANES = 32 };  // threads that run side by side
#else
#include <cmath>
#include <cstdint>
using namespace std;
#define DEVICE
#define KERNEL static
enum { LANES = 1 };
struct Index { long long x; };
static thread_local Index blockIdx, blockDim, threadIdx;
#endif
#ifdef __CUDACC_RTC__
typedef int int32_t;
typedef long long int64_t;
#endif
"""

_INLINE = """
#ifdef __CUDACC__
#define LOOP _Pragma("unroll")
#define FUNCTION static __device__ __forceinline__
#else
#define LOOP
#define FUNCTION static inline
#endif
"""

_CALLS = """
#define LOOP
#ifdef __CUDACC__
#define FUNCTION static __device__ __noinline__
#else
#define FUNCTION static
#endif
"""

_TYPES = """
enum { W = 1 };
typedef real V;
typedef bool M;
typedef double T;  // times
typedef bool TM;
typedef int32_t N;  // counts
#ifdef __CUDACC__
#define FUNCTION_MEMBER __device__ __forceinline__
#else
#define FUNCTION_MEMBER inline
#endif
#define INLINE static FUNCTION_MEMBER
INLINE V spread(real x) { return x; }
INLINE T time_of(double x) { return x; }
#define EPSILON 2.220446049250313e-16
#define UNLIMITED (1.0 / 0.0)
#define INF (real(1) / real(0))
#define NOT_A_NUMBER (real(0) / real(0))
"""

_SINGLE = "#define SMALLEST 1.17549435e-38f"
_DOUBLE = "#define SMALLEST 2.2250738585072014e-308"

_BODY = """
INLINE V choose(M m, V a, V b) { return m ? a : b; }
INLINE V mask(M m) { return m ? 1 : 0; }
INLINE bool not_(bool m) { return !m; }
INLINE V abs_(V x) { return fabs(x); }
INLINE V sigmoid_(V x) { return 1 / (1 + exp(-x)); }
INLINE V round_(V x) { return nearbyint(x); }
INLINE V pow_(V x, V y) { return pow(x, y); }
INLINE V atan2_(V x, V y) { return atan2(x, y); }
INLINE M is_finite(V x) { return x - x == 0; }
INLINE T absolute(T x) { return fabs(x); }
INLINE T larger(T x, T y) { return (x > y) | (x != x) ? x : y; }
INLINE T smaller(T x, T y) { return (x < y) | (x != x) ? x : y; }
INLINE T sign_of(T x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
INLINE T finite_or(T x, T other) { return x - x == 0 ? x : other; }
INLINE T widen(V x) { return x; }
INLINE V narrow(T x) { return x; }
INLINE TM wide(M m) { return m; }
INLINE M thin(TM m) { return m; }
INLINE N counts(TM m) { return m ? -1 : 0; }
INLINE T number_of(N n) { return n; }
INLINE bool some(TM m) { return m; }
INLINE T power(T x, double p) { return pow(x, p); }
"""
