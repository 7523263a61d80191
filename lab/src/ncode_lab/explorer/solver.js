// Solve dz/dt = slope(z) from t = 0 to t1 with Dormand and Prince's method of order 5, one sample at a time, with the
// step-size rule of `ncode.solve`; and differentiate the result by backpropagation through the accepted steps
// (gradient="discrete" in the library).
//
// A system is an object with
//   size                       number of elements of z
//   parts                      [[from, to], ...]: x, and the control if it is driven; their errors have separate norms
//   slope(z, out)              writes dz/dt into out
//   pullback(z, k_bar, z_bar)  adds (d slope / dz)^T k_bar to z_bar, and keeps the gradient of its own parameters

const A = [
  [],
  [1 / 5],
  [3 / 40, 9 / 40],
  [44 / 45, -56 / 15, 32 / 9],
  [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
  [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
];
const B = [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84];
// The difference to the method of order 4, which also uses the slope at the end of the step.
const ERROR = [71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40];
// Dense output: z(t + s h) = z + h sum_i sum_q DENSE[i][q] s^(q+1) k_i.
const DENSE = [
  [1, -8048581381 / 2820520608, 8663915743 / 2820520608, -12715105075 / 11282082432],
  [0, 0, 0, 0],
  [0, 131558114200 / 32700410799, -68118460800 / 10900136933, 87487479700 / 32700410799],
  [0, -1754552775 / 470086768, 14199869525 / 1410260304, -10690763975 / 1880347072],
  [0, 127303824393 / 49829197408, -318862633887 / 49829197408, 701980252875 / 199316789632],
  [0, -282668133 / 205662961, 2019193451 / 616988883, -1453857185 / 822651844],
  [0, 40617522 / 29380423, -110615467 / 29380423, 69997945 / 29380423],
];
const STAGES = 6;
const ORDER = 5; // the error of a step shrinks as h^5
const SAFETY = 0.9;
const SMALLEST = 0.2;
const LARGEST = 10;
const STRETCH = Math.max(1 + 1e-9, Math.min(1.1, 0.99 / SAFETY)); // the last step may be longer than planned
const MAX_STEPS = 2000;

/** out = z + h sum_i row[i] slopes[i]. */
function advance(z, h, row, slopes, out) {
  out.set(z);
  for (let i = 0; i < row.length; i++) {
    const weight = h * row[i];
    if (weight === 0) continue;
    const k = slopes[i];
    for (let j = 0; j < z.length; j++) out[j] += weight * k[j];
  }
}

/** The largest root mean square of values / (rtol size + atol) over the parts of the system. */
function scaledNorm(system, values, sizeOf, rtol, atol) {
  let largest = 0;
  for (const [from, to] of system.parts) {
    let sum = 0;
    for (let j = from; j < to; j++) {
      const ratio = values[j] / (rtol * sizeOf(j) + atol);
      sum += ratio * ratio;
    }
    const norm = Math.sqrt(sum / (to - from));
    if (!(norm <= largest)) largest = norm; // nan stays nan
  }
  return largest;
}

/** A first step by the rule of Hairer, Norsett and Wanner, at the cost of one evaluation. */
function firstStep(system, z, slope, t1, rtol, atol) {
  const size = (values) => scaledNorm(system, values, (j) => Math.abs(z[j]), rtol, atol);
  const d0 = size(z);
  const d1 = size(slope);
  const h0 = Math.min(d0 < 1e-5 || d1 < 1e-5 ? 1e-6 : (0.01 * d0) / d1, t1);
  const trial = new Float64Array(system.size);
  const there = new Float64Array(system.size);
  advance(z, h0, [1], [slope], there);
  system.slope(there, trial);
  const steepest = Math.max(d1, size(trial.map((value, j) => value - slope[j])) / h0);
  const h1 = steepest <= 1e-15 ? Math.max(h0 * 1e-3, 1e-6) : (0.01 / steepest) ** (1 / ORDER);
  let h = Math.min(100 * h0, h1);
  if (!Number.isFinite(h)) h = h0; // too long a trial: the loop shrinks the step
  return Math.min(Math.max(h, 1e4 * Number.EPSILON * t1), t1);
}

/** The factor of the step size after a step whose error is `ratio` times its tolerance. */
function stepFactor(ratio) {
  if (!Number.isFinite(ratio)) return SMALLEST;
  const factor = Math.min(Math.max(SAFETY * Math.max(ratio, 1e-10) ** (-1 / ORDER), SMALLEST), LARGEST);
  return ratio <= 1 ? factor : Math.min(factor, SAFETY);
}

/**
 * Solve from z0 to t1.
 *
 * Returns {z, ok, nfe, accepted, rejected, attempts, steps}: `attempts` has {t, h, accepted} of every attempt. With
 * keep = "stages", `steps` has the states of all stages of accepted steps, for `backpropagate`; with keep = "dense", it
 * has their slopes, for `interpolate`.
 */
function solve(system, z0, { t1 = 1, rtol = 1e-3, atol = 1e-6, keep = "" } = {}) {
  const n = system.size;
  const make = () => new Float64Array(n);
  let z = Float64Array.from(z0);
  const slopes = Array.from({ length: STAGES + 1 }, make);
  const stages = Array.from({ length: STAGES }, make);
  let next = make();
  const error = make();
  const attempts = [];
  const steps = [];
  let rejected = 0;
  system.slope(z, slopes[0]);
  let t = 0;
  let h = firstStep(system, z, slopes[0], t1, rtol, atol);
  let ok = slopes[0].every(Number.isFinite);
  let done = !ok;
  while (!done) {
    const last = h * STRETCH >= t1 - t;
    if (last) h = t1 - t;
    stages[0].set(z);
    for (let i = 1; i < STAGES; i++) {
      advance(z, h, A[i], slopes, stages[i]);
      system.slope(stages[i], slopes[i]);
    }
    advance(z, h, B, slopes, next);
    system.slope(next, slopes[STAGES]);
    error.fill(0);
    advance(error, h, ERROR, slopes, error);
    const ratio = scaledNorm(system, error, (j) => Math.max(Math.abs(z[j]), Math.abs(next[j])), rtol, atol);
    const accepted = ratio <= 1;
    attempts.push({ t, h, accepted });
    const planned = h * stepFactor(ratio);
    if (accepted) {
      if (keep === "stages") steps.push({ t, h, stages: stages.map((stage) => stage.slice()) });
      if (keep === "dense") steps.push({ t, h, z: z.slice(), slopes: slopes.map((k) => k.slice()) });
      [z, next] = [next, z];
      slopes[0].set(slopes[STAGES]); // the first slope of the next step
      t = last ? t1 : t + h;
      done = last;
    } else {
      rejected += 1;
      if (planned <= 10 * Number.EPSILON * t1) [ok, done] = [false, true];
    }
    if (attempts.length >= MAX_STEPS && !done) [ok, done] = [false, true];
    h = planned;
  }
  if (!ok) z.fill(NaN);
  const nfe = 2 + STAGES * attempts.length;
  return { z, ok, nfe, accepted: attempts.length - rejected, rejected, attempts, steps };
}

/**
 * The gradient of a loss with respect to z(0), given z_bar, that with respect to z(t1). The system keeps the gradient
 * of its parameters. Step sizes count as constants. With stages Z_i = z + h sum_j a_ij k_j, k_i = slope(Z_i) and
 * z_next = z + h sum_i b_i k_i, from the last stage to the first:
 *
 *   k_bar_i = h (b_i z_bar_next + sum_{j > i} a_ji Z_bar_j),    Z_bar_i = (d slope / dz at Z_i)^T k_bar_i
 *
 * and then z_bar = z_bar_next + sum_i Z_bar_i.
 */
function backpropagate(system, steps, z_bar) {
  const n = system.size;
  const bars = Array.from({ length: STAGES }, () => new Float64Array(n));
  const k_bar = new Float64Array(n);
  for (let s = steps.length - 1; s >= 0; s--) {
    const { h, stages } = steps[s];
    for (let i = STAGES - 1; i >= 0; i--) {
      for (let j = 0; j < n; j++) k_bar[j] = h * B[i] * z_bar[j];
      for (let later = i + 1; later < STAGES; later++) {
        const weight = h * A[later][i];
        if (weight === 0) continue;
        for (let j = 0; j < n; j++) k_bar[j] += weight * bars[later][j];
      }
      bars[i].fill(0);
      system.pullback(stages[i], k_bar, bars[i]);
    }
    for (const bar of bars) for (let j = 0; j < n; j++) z_bar[j] += bar[j];
  }
  return z_bar;
}

/** The state at time t, or its first `count` elements, from the steps of solve(..., {keep: "dense"}). */
function interpolate(steps, t, count = steps[0].z.length) {
  const step = steps.findLast((each) => each.t <= t) ?? steps[0];
  const s = (t - step.t) / step.h;
  const row = DENSE.map((powers) => powers.reduceRight((sum, weight) => (sum + weight) * s, 0));
  const out = new Float64Array(count);
  advance(step.z.subarray(0, count), step.h, row, step.slopes, out);
  return out;
}
