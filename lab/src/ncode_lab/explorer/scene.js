// What the figures show, computed with the solver: trajectories, regions, and the steps of a sample.

const FRAMES = 48;
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

/** The square of inputs: the probability of class 1, or the distance to the target, computed some rows at a time. */
class Region {
  constructor(size = 60) {
    this.size = size;
    this.values = new Float64Array(size * size).fill(NaN);
    this.row = 0;
    this.left = 0; // rows to compute until all are up to date
  }

  /** The model has changed: every row is to be computed again. */
  refresh(clear = false) {
    this.left = this.size;
    if (clear) this.values.fill(NaN);
  }

  /** Compute rows for some milliseconds. */
  work(run, tolerance, milliseconds) {
    if (!this.left) return;
    const until = performance.now() + milliseconds;
    run.model.use(run.p);
    while (this.left && performance.now() < until) {
      this.computeRow(run, tolerance);
      this.row = (this.row + 7) % this.size; // 7 has no common divisor with the size: every row has its turn
      this.left -= 1;
    }
  }

  computeRow({ model }, tolerance) {
    const at = (i) => REACH * ((2 * i + 1) / this.size - 1);
    const b = -at(this.row);
    for (let column = 0; column < this.size; column++) {
      const a = at(column);
      const { z } = solve(model, model.begin([a, b]), both(tolerance));
      const value = model.classify ? 1 / (1 + Math.exp(-model.read(z))) : Math.hypot(z[0] + a, z[1] - b);
      this.values[this.row * this.size + column] = value;
    }
  }
}
