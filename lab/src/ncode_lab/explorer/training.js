// The loss of a batch, its gradient, and Adam.

/** Loss of one sample from its end state, and its gradient with respect to that state. */
function sampleLoss(model, z, target, count, z_bar) {
  if (model.classify) {
    const logit = model.read(z);
    const bar = (1 / (1 + Math.exp(-logit)) - target) / count;
    for (let j = 0; j < model.state; j++) {
      z_bar[j] = bar * model.p[model.readAt + j];
      model.p_bar[model.readAt + j] += bar * z[j];
    }
    model.p_bar[model.readAt + model.state] += bar;
    return Math.max(logit, 0) - logit * target + Math.log1p(Math.exp(-Math.abs(logit)));
  }
  let sum = 0;
  target.forEach((goal, j) => {
    const difference = z[j] - goal;
    z_bar[j] = (2 * difference) / (count * target.length);
    sum += difference * difference;
  });
  return sum / target.length;
}

/**
 * The mean loss of a batch: squared error, or cross entropy of two classes.
 *
 * Returns {loss, gradient, solutions}; the gradient is left out if `differentiate` is false.
 */
function batchLoss(model, p, { x, y }, options, differentiate = true) {
  model.use(p);
  let loss = 0;
  const solutions = x.map((point, i) => {
    const solution = solve(model, model.begin(point), { ...options, keep: differentiate ? "stages" : "" });
    const z_bar = new Float64Array(model.size);
    loss += sampleLoss(model, solution.z, y[i], x.length, z_bar) / x.length;
    if (differentiate) model.finish(backpropagate(model, solution.steps, z_bar));
    solution.steps = [];
    return solution;
  });
  return { loss, gradient: model.p_bar, solutions };
}

/** Adam with torch's defaults. */
class Adam {
  constructor(size) {
    this.mean = new Float64Array(size);
    this.square = new Float64Array(size);
    this.count = 0;
  }

  step(p, gradient, lr) {
    this.count += 1;
    const first = 1 - 0.9 ** this.count;
    const second = Math.sqrt(1 - 0.999 ** this.count);
    for (let i = 0; i < p.length; i++) {
      this.mean[i] += 0.1 * (gradient[i] - this.mean[i]);
      this.square[i] = 0.999 * this.square[i] + 0.001 * gradient[i] * gradient[i];
      p[i] -= ((lr / first) * this.mean[i]) / (Math.sqrt(this.square[i]) / second + 1e-8);
    }
  }
}

/** One model of one task while it is trained, with all that is needed to repeat its training. */
class Run {
  constructor(kind, task, seed) {
    this.model = new Model(kind, task.dim, task.classify);
    this.task = task;
    this.version = 0;
    this.start(seed);
  }

  /** Start again: from the seed, or from shipped weights {weights, curve, steps} of the same seed. */
  start(seed, shipped = null) {
    this.seed = seed;
    this.shipped = shipped;
    this.p = shipped ? Float64Array.from(shipped.weights) : randomWeights(seed, this.model.bounds);
    this.adam = new Adam(this.p.length);
    this.history = []; // [steps, lr, tolerance] since the start
    this.curve = shipped ? shipped.curve.slice() : []; // [step, loss]
    this.failed = false;
    this.version += 1;
  }

  /** Steps of training, with those of the shipped weights. */
  get steps() {
    return this.adam.count + (this.shipped ? this.shipped.steps : 0);
  }

  /** One step of Adam on all points. A solve that fails ends the training. */
  train(tolerance, lr) {
    const { loss, gradient } = batchLoss(this.model, this.p, this.task.data, { rtol: tolerance, atol: tolerance });
    this.failed = !Number.isFinite(loss);
    if (this.failed) return;
    this.curve.push([this.steps, loss]);
    this.adam.step(this.p, gradient, lr);
    this.remember(lr, tolerance);
    this.version += 1;
  }

  remember(lr, tolerance) {
    const last = this.history.at(-1);
    if (last && last[1] === lr && last[2] === tolerance) last[0] += 1;
    else this.history.push([1, lr, tolerance]);
  }
}
