// What the figures show, computed with the solver: trajectories, regions, and the steps of a sample.

const FRAMES = 50;
const TIMES = range(FRAMES + 1).map((i) => i / FRAMES);
const TOLERANCES = [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8];
const REACH = 1.8; // half the side of the square of inputs

const both = (tolerance) => ({ rtol: tolerance, atol: tolerance });

/** Trajectories of all points of the task at TIMES, their steps, and how well they end. */
function followAll(run, tolerance) {
  const { model, task: { data } } = run;
  model.use(run.p);
  const scrap = new Float64Array(model.size);
  let loss = 0;
  let right = 0;
  const all = data.x.map((x, i) => {
    const solution = solve(model, model.begin(x), { ...both(tolerance), keep: "dense" });
    loss += sampleLoss(model, solution.z, data.y[i], 1, scrap) / data.x.length;
    if (model.classify) right += Number(model.read(solution.z) > 0 === (data.y[i] === 1)) / data.x.length;
    const { accepted, rejected } = solution;
    return { path: statesAt(solution, model.state), accepted, rejected };
  });
  return { all, loss: all.length ? loss : NaN, right };
}

/** The states of a solution at TIMES; none if it failed. */
function statesAt(solution, count) {
  return solution.ok ? TIMES.map((t) => interpolate(solution.steps, t, count)) : [];
}

/** The trajectory, steps and prediction of one sample. */
function followSample(run, x, tolerance) {
  const { model } = run;
  model.use(run.p);
  const solution = solve(model, model.begin(x), { ...both(tolerance), keep: "dense" });
  const stateAt = (t) => (solution.ok ? interpolate(solution.steps, t) : new Float64Array(model.size).fill(NaN));
  return {
    ...solution,
    x,
    stateAt,
    path: statesAt(solution, model.state),
    theta: Float64Array.from(model.theta),
    controlAt(t) {
      return model.driven ? stateAt(t).subarray(model.state) : this.theta;
    },
    probability: model.classify ? 1 / (1 + Math.exp(-model.read(solution.z))) : NaN,
  };
}

/** Steps of one sample at each of TOLERANCES. */
function sweepTolerance(run, x) {
  run.model.use(run.p);
  return TOLERANCES.map((tolerance) => {
    const { accepted, rejected } = solve(run.model, run.model.begin(x), both(tolerance));
    return { tolerance, accepted, rejected };
  });
}

/**
 * The square of inputs: the probability of class 1, or the distance to the target.
 *
 * It is computed some rows at a time, with the weights that the model had at the first row, and shown when complete.
 */
class Region {
  constructor() {
    this.shown = null;
    this.pass = null;
  }

  /** Whether what is shown belongs to another key, a text that stands for model and tolerance, or is too coarse. */
  isOutdated(key, size) {
    return this.shown?.key !== key || this.shown.size < size;
  }

  /** Compute rows for some milliseconds. A pass that was started for another key is given up unless `finish`. */
  work(run, tolerance, { key, size, finish, milliseconds }) {
    if (!this.isOutdated(key, size)) return;
    if (!this.pass || (this.pass.key !== key && !finish)) {
      this.pass = { key, size, p: run.p.slice(), row: 0, values: new Float64Array(size ** 2) };
    }
    const until = performance.now() + milliseconds;
    run.model.use(this.pass.p);
    while (this.pass.row < this.pass.size && performance.now() < until) {
      computeRow(this.pass, run.model, tolerance);
      this.pass.row += 1;
    }
    if (this.pass.row === this.pass.size) [this.shown, this.pass] = [this.pass, null];
  }
}

function computeRow({ size, row, values }, model, tolerance) {
  const at = (i) => REACH * ((2 * i + 1) / size - 1);
  const b = -at(row);
  for (let column = 0; column < size; column++) {
    const a = at(column);
    const { z } = solve(model, model.begin([a, b]), both(tolerance));
    values[row * size + column] = model.classify ? 1 / (1 + Math.exp(-model.read(z))) : Math.hypot(z[0] + a, z[1] - b);
  }
}
