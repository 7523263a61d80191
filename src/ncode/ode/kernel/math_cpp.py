"""Arithmetic for the printer on a CPU: types, and functions of a vector of samples.

exp, log, tanh and their relatives are reductions to a short interval and Taylor polynomials, within a few units in the
last place; the others call the C library for each sample.
"""

from __future__ import annotations

import math

import torch


def prelude(dtype: torch.dtype) -> str:
    """Types and functions for one precision."""
    single = dtype == torch.float32
    constants = _SINGLE if single else _DOUBLE
    terms = (8, 5) if single else (14, 11)
    exp = [1 / math.factorial(n) for n in range(1, terms[0])]
    log = [2 / (2 * n + 1) for n in range(1, terms[1])]
    return "\n".join(
        [_HEADERS, constants, _TYPES, _polynomial("expm1_series", exp), _polynomial("log_series", log), _BODY, COMMON]
    )


def _polynomial(name: str, coefficients: list[float]) -> str:
    """A polynomial by Horner's rule, lowest coefficient first."""
    text = f"spread(real({coefficients[-1]!r}))"
    for c in coefficients[-2::-1]:
        text = f"({text}) * x + real({c!r})"
    return f"static inline V {name}(V x) {{ return {text}; }}"


_HEADERS = """
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <thread>
#include <vector>
"""

_SINGLE = """
typedef float real;
typedef int32_t whole;
static const int MANTISSA = 23, BIAS = 127;
static const whole SQRT_HALF = 0x3f3504f3;
static const real MAGIC = 12582912.0f, LOWEST = -104.0f, HIGHEST = 89.0f, SATURATED = 10.0f;
static const real LN2_HIGH = 0x1.62ep-1f, LN2_LOW = 0x1.0bfbe8p-15f;
"""

_DOUBLE = """
typedef double real;
typedef int64_t whole;
static const int MANTISSA = 52, BIAS = 1023;
static const whole SQRT_HALF = 0x3fe6a09e667f3bcdLL;
static const real MAGIC = 6755399441055744.0, LOWEST = -746.0, HIGHEST = 710.0, SATURATED = 22.0;
static const real LN2_HIGH = 0x1.62e42fefa38p-1, LN2_LOW = 0x1.ef35793c7673p-45;
"""

_TYPES = """
enum { W = 64 / sizeof(real) };  // samples side by side
typedef real V __attribute__((vector_size(64)));
typedef whole M __attribute__((vector_size(64)));
typedef double T __attribute__((vector_size(8 * W)));  // times
typedef int64_t TM __attribute__((vector_size(8 * W)));
typedef int32_t N __attribute__((vector_size(4 * W)));  // counts
#define INLINE static inline __attribute__((always_inline))
INLINE V spread(real x) { return x - V{}; }  // unlike V{} + x, this is x also for -0, and costs no addition
INLINE V spread(V x) { return x; }
#define FUNCTION static
#define FUNCTION_MEMBER inline
#define LOOP
#define EPSILON std::numeric_limits<double>::epsilon()
#define UNLIMITED std::numeric_limits<double>::infinity()
INLINE T time_of(double x) { return T{} + x; }
"""

_BODY = r"""
static const real INF = std::numeric_limits<real>::infinity(), NOT_A_NUMBER = std::numeric_limits<real>::quiet_NaN();
static const real SMALLEST = std::numeric_limits<real>::min();

INLINE V choose(M m, V a, V b) { return m ? a : b; }
INLINE V mask(M m) { return m ? spread(1) : spread(0); }
INLINE V power_of_two(M n) { return (V)((n + BIAS) << MANTISSA); }

// exp(x) = 2^n (1 + q) with |ln(1 + q)| at most ln(2) / 2
INLINE V reduced(V x, M *n) {
  V rounded = x * real(1.4426950408889634) + MAGIC;
  *n = (M)rounded - (M)spread(MAGIC);
  V count = rounded - MAGIC, r = (x - count * LN2_HIGH) - count * LN2_LOW;
  return r * expm1_series(r);
}
INLINE V exp_(V x) {
  x = choose(x > HIGHEST, spread(HIGHEST), choose(x < LOWEST, spread(LOWEST), x));
  M n;
  V q = reduced(x, &n);
  M half = n >> 1;
  return (q + 1) * power_of_two(half) * power_of_two(n - half);
}
INLINE V expm1_(V x) {
  M n, far = x > HIGHEST - 2;
  V q = reduced(choose(far, spread(0), choose(x < LOWEST / 2, spread(LOWEST / 2), x)), &n), two = power_of_two(n);
  return choose(far, exp_(x), two * q + (two - 1));
}
static const whole SIGN = std::numeric_limits<whole>::min();
INLINE V abs_(V x) { return (V)((M)x & ~SIGN); }
INLINE V tanh_(V x) {
  V a = abs_(x);
  a = choose(a > SATURATED, spread(SATURATED), a);
  M n;
  V q = reduced(2 * a, &n), two = power_of_two(n), e = two * q + (two - 1), y = e / (e + 2);
  return (V)((M)y | ((M)x & SIGN));
}
INLINE V sigmoid_(V x) { return 1 / (1 + exp_(-x)); }
INLINE V log_(V x) {
  M tiny = x < SMALLEST;
  V scaled = choose(tiny, x * real(1ull << 54), x);
  M bits = (M)scaled, e = (bits - SQRT_HALF) >> MANTISSA;
  V m = (V)(bits - (e << MANTISSA)), count = __builtin_convertvector(e, V) - choose(tiny, spread(54), spread(0));
  V f = m - 1, s = f / (m + 1), z = s * s;
  V y = count * LN2_HIGH + (2 * s + (s * z * log_series(z) + count * LN2_LOW));
  y = choose(x == 0, spread(-INF), choose(x < 0, spread(NOT_A_NUMBER), y));
  return choose((x == INF) | (x != x), x, y);
}
INLINE V log1p_(V x) {
  V u = 1 + x;
  return choose((u == INF) | (u <= 0) | (u != u), log_(u), choose(u == 1, x, log_(u) + (x - (u - 1)) / u));
}

#define EACH(name, f) \
  static inline V name(V x) { V y; for (int l = 0; l < W; l++) y[l] = f(x[l]); return y; }
#define EACH2(name, f) \
  static inline V name(V x, V z) { V y; for (int l = 0; l < W; l++) y[l] = f(x[l], z[l]); return y; }
EACH(sqrt_, std::sqrt) EACH(sin_, std::sin) EACH(cos_, std::cos) EACH(tan_, std::tan) EACH(asin_, std::asin)
EACH(acos_, std::acos) EACH(atan_, std::atan) EACH(sinh_, std::sinh) EACH(cosh_, std::cosh) EACH(asinh_, std::asinh)
EACH(acosh_, std::acosh) EACH(atanh_, std::atanh) EACH(erf_, std::erf) EACH(erfc_, std::erfc) EACH(log2_, std::log2)
EACH(log10_, std::log10) EACH(floor_, std::floor) EACH(ceil_, std::ceil) EACH(trunc_, std::trunc)
EACH(round_, std::nearbyint)
EACH2(pow_, std::pow) EACH2(atan2_, std::atan2)

INLINE M is_finite(V x) { return x - x == 0; }
INLINE T absolute(T x) { return x < 0 ? -x : x; }
INLINE T larger(T x, T y) { return (x > y) | (x != x) ? x : y; }
INLINE T smaller(T x, T y) { return (x < y) | (x != x) ? x : y; }
INLINE T sign_of(T x) { return x > 0 ? time_of(1) : x < 0 ? time_of(-1) : time_of(0); }
INLINE T finite_or(T x, T other) { return x - x == 0 ? x : other; }
INLINE T widen(V x) { return __builtin_convertvector(x, T); }
INLINE V narrow(T x) { return __builtin_convertvector(x, V); }
INLINE M thin(TM m) { return __builtin_convertvector(m, M); }
INLINE TM wide(M m) { return __builtin_convertvector(m, TM); }
template <class X> INLINE X not_(X m) { return ~m; }
INLINE N counts(TM m) { return __builtin_convertvector(m, N); }
INLINE T number_of(N n) { return __builtin_convertvector(n, T); }
INLINE bool some(TM m) { bool found = false; for (int l = 0; l < W; l++) found |= m[l] != 0; return found; }
INLINE T power(T x, double p) { T y; for (int l = 0; l < W; l++) y[l] = std::pow(x[l], p); return y; }
"""

COMMON = r"""
INLINE V copy_(V x) { return x; }
INLINE V one_(V) { return spread(1); }
INLINE V add_(V x, V y) { return x + y; }
INLINE V sub_(V x, V y) { return x - y; }
INLINE V mul_(V x, V y) { return x * y; }
INLINE V div_(V x, V y) { return x / y; }
INLINE V add_scaled_(V x, V y, V a) { return x + a * y; }
INLINE V sub_scaled_(V x, V y, V a) { return x - a * y; }
INLINE V addcmul_(V x, V y, V z, V a) { return x + a * (y * z); }
INLINE V addcdiv_(V x, V y, V z, V a) { return x + a * (y / z); }
INLINE V neg_(V x) { return -x; }
INLINE V square_(V x) { return x * x; }
INLINE V cube_(V x) { return x * x * x; }
INLINE V reciprocal_(V x) { return 1 / x; }
INLINE V rsqrt_(V x) { return 1 / sqrt_(x); }
INLINE V relu_(V x) { return choose(x < 0, spread(0), x); }
INLINE V sign_(V x) { return choose(x > 0, spread(1), choose(x < 0, spread(-1), spread(0))); }
// nan if one of them is
INLINE V maximum_(V x, V y) { return choose((x > y) | (x != x), x, y); }
INLINE V minimum_(V x, V y) { return choose((x < y) | (x != x), x, y); }
INLINE V clamp_(V x, V low, V high) { return minimum_(maximum_(x, low), high); }
INLINE V where_(V m, V x, V y) { return choose(m != 0, x, y); }
INLINE V eq_(V x, V y) { return mask(x == y); }
INLINE V ne_(V x, V y) { return mask(x != y); }
INLINE V lt_(V x, V y) { return mask(x < y); }
INLINE V le_(V x, V y) { return mask(x <= y); }
INLINE V gt_(V x, V y) { return mask(x > y); }
INLINE V ge_(V x, V y) { return mask(x >= y); }
INLINE V logical_and_(V x, V y) { return mask((x != 0) & (y != 0)); }
INLINE V logical_or_(V x, V y) { return mask((x != 0) | (y != 0)); }
INLINE V logical_xor_(V x, V y) { return mask((x != 0) ^ (y != 0)); }
INLINE V logical_not_(V x) { return mask(x == 0); }
INLINE V isnan_(V x) { return mask(x != x); }
INLINE V isinf_(V x) { return mask((x == INF) | (x == -INF)); }
INLINE V tanh_backward_(V g, V y) { return g * (1 - y * y); }
INLINE V sigmoid_backward_(V g, V y) { return g * (1 - y) * y; }
"""
"""Functions that are the same on every machine: of V, a number per sample, and of T, a time per sample."""
