// The four models, each a system for `solve` in solver.js, with exact gradients written out by hand.
//
//   node         dx/dt = f(x, theta)   theta learned, the same for all samples        ncode.control.Static()
//   anode        the same, on a state with one more dimension that starts at 0        ncode.dynamics.Augmented
//   open-loop    dx/dt = f(x, theta)   theta = gamma(x(0))                            ncode.OpenLoop
//   closed-loop  dx/dt = f(x, theta)   dtheta/dt = g(x), theta(0) learned             ncode.ClosedLoop
//
// f is a perceptron whose weights are all in theta (ncode.dynamics.MLP). gamma and g are a tanh layer with one linear
// head per weight of f. All parameters are in one array p, in the order of the library's model.parameters().

const MODELS = ["node", "anode", "open-loop", "closed-loop"];
const FIELD_ALONE = [24, 24]; // hidden layers of f in node and anode, which have no other network
const FIELD = [8]; // of f under control
const WIDTH = 16; // of the tanh layer of gamma and g
const ZEROS = 1; // additional dimensions of anode

/** y = W x + b, with W (rows, columns) and then b in the array w from position o. */
function affine(w, o, rows, columns, x, y, at = 0) {
  const bias = o + rows * columns;
  for (let i = 0; i < rows; i++) {
    let sum = w[bias + i];
    for (let j = 0; j < columns; j++) sum += w[o + i * columns + j] * x[j];
    y[at + i] = sum;
  }
}

/** The gradients of `affine`: adds to w_bar, and to x_bar unless it is null. */
function affinePullback(w, o, rows, columns, x, y_bar, at, x_bar, w_bar, w_at = o) {
  const bias = w_at + rows * columns;
  for (let i = 0; i < rows; i++) {
    const bar = y_bar[at + i];
    w_bar[bias + i] += bar;
    for (let j = 0; j < columns; j++) {
      w_bar[w_at + i * columns + j] += bar * x[j];
      if (x_bar) x_bar[j] += bar * w[o + i * columns + j];
    }
  }
}

/** A perceptron with tanh between its layers, and its weights in a given array: W_1, b_1, W_2, b_2, ... */
class Perceptron {
  constructor(sizes) {
    this.sizes = sizes;
    this.shapes = [];
    this.size = 0;
    for (let layer = 1; layer < sizes.length; layer++) {
      const [columns, rows] = [sizes[layer - 1], sizes[layer]];
      this.shapes.push({ rows, columns, offset: this.size });
      this.size += rows * (columns + 1);
    }
    this.values = sizes.map((size) => new Float64Array(size));
    this.bars = sizes.map((size) => new Float64Array(size));
  }

  forward(w, o, x, out) {
    const { shapes, values } = this;
    for (let j = 0; j < this.sizes[0]; j++) values[0][j] = x[j];
    shapes.forEach(({ rows, columns, offset }, layer) => {
      const last = layer === shapes.length - 1;
      const y = last ? out : values[layer + 1];
      affine(w, o + offset, rows, columns, values[layer], y);
      if (!last) for (let i = 0; i < rows; i++) y[i] = Math.tanh(y[i]);
    });
  }

  pullback(w, o, x, out_bar, x_bar, w_bar, w_at) {
    const { shapes, values, bars } = this;
    this.forward(w, o, x, values.at(-1));
    for (let layer = shapes.length - 1; layer >= 0; layer--) {
      const { rows, columns, offset } = shapes[layer];
      const y_bar = layer === shapes.length - 1 ? out_bar : bars[layer + 1];
      const into = layer === 0 ? x_bar : bars[layer].fill(0);
      affinePullback(w, o + offset, rows, columns, values[layer], y_bar, 0, into, w_bar, w_at + offset);
      if (layer > 0) for (let j = 0; j < columns; j++) into[j] *= 1 - values[layer][j] ** 2;
    }
  }
}

/** gamma and g: a tanh layer of x, and one linear head for each tensor of f's weights. */
class Heads {
  constructor(dim, width, tensors) {
    this.dim = dim;
    this.width = width;
    this.heads = [];
    this.size = width * (dim + 1);
    for (const { size, offset } of tensors) {
      this.heads.push({ size, offset, from: this.size });
      this.size += size * (width + 1);
    }
    this.features = new Float64Array(width);
    this.bar = new Float64Array(width);
  }

  forward(p, x, out, at = 0) {
    affine(p, 0, this.width, this.dim, x, this.features);
    for (let i = 0; i < this.width; i++) this.features[i] = Math.tanh(this.features[i]);
    for (const { size, offset, from } of this.heads) affine(p, from, size, this.width, this.features, out, at + offset);
  }

  pullback(p, x, out_bar, at, x_bar, p_bar) {
    affine(p, 0, this.width, this.dim, x, this.features);
    for (let i = 0; i < this.width; i++) this.features[i] = Math.tanh(this.features[i]);
    this.bar.fill(0);
    for (const { size, offset, from } of this.heads) {
      affinePullback(p, from, size, this.width, this.features, out_bar, at + offset, this.bar, p_bar);
    }
    for (let i = 0; i < this.width; i++) this.bar[i] *= 1 - this.features[i] ** 2;
    affinePullback(p, 0, this.width, this.dim, x, this.bar, 0, x_bar, p_bar);
  }
}

/** A model of points with `dim` coordinates; `classify` adds a linear read-out of the end state. */
class Model {
  constructor(kind, dim, classify) {
    this.kind = kind;
    this.dim = dim;
    this.classify = classify;
    this.state = kind === "anode" ? dim + ZEROS : dim;
    this.driven = kind === "closed-loop";
    this.shared = kind === "node" || kind === "anode";
    this.hidden = this.shared ? FIELD_ALONE : FIELD;
    this.field = new Perceptron([this.state, ...this.hidden, this.state]);
    this.tensors = this.field.shapes.flatMap(({ rows, columns, offset }, layer) => [
      { name: `weight_${layer + 1}`, rows, columns, offset, size: rows * columns, fan: columns },
      { name: `bias_${layer + 1}`, rows: 1, columns: rows, offset: offset + rows * columns, size: rows, fan: columns },
    ]);
    this.heads = this.shared ? null : new Heads(dim, WIDTH, this.tensors);
    this.bounds = [...this.controllerBounds(), ...this.readOutBounds()];
    this.parameters = this.bounds.reduce((sum, [size]) => sum + size, 0);
    this.readAt = this.parameters - (classify ? this.state + 1 : 0);

    const m = this.field.size;
    this.size = this.state + (this.driven ? m : 0);
    this.parts = this.driven ? [[0, this.state], [this.state, this.size]] : [[0, this.state]];
    this.use(new Float64Array(this.parameters));
  }

  /** [size, bound] of each parameter tensor: initial values are uniform within the bound, as in the library. */
  controllerBounds() {
    const own = this.tensors.map(({ size, fan }) => [size, 1 / Math.sqrt(fan)]);
    if (this.shared) return own;
    const trunk = [[WIDTH * this.dim, 1 / Math.sqrt(this.dim)], [WIDTH, 1 / Math.sqrt(this.dim)]];
    const heads = own.flatMap(([size, bound]) => [
      [size * WIDTH, bound / Math.sqrt(WIDTH)], // the part that depends on the data: scale=1
      [size, this.driven ? 0 : bound],
    ]);
    return this.driven ? [...trunk, ...heads, ...own] : [...trunk, ...heads];
  }

  readOutBounds() {
    const bound = 1 / Math.sqrt(this.state);
    return this.classify ? [[this.state, bound], [1, bound]] : [];
  }

  /** Use these parameters from now on, and start a gradient of zeros. */
  use(p) {
    const m = this.field.size;
    this.p = p;
    this.p_bar = new Float64Array(this.parameters);
    const from = this.driven ? this.heads.size : 0; // of a learned control
    const learned = this.kind !== "open-loop";
    this.theta = learned ? p.subarray(from, from + m) : new Float64Array(m);
    this.theta_bar = learned ? this.p_bar.subarray(from, from + m) : new Float64Array(m);
    return this;
  }

  /** The state at t = 0 of the sample x, whose control is set. */
  begin(x) {
    this.x = x;
    if (this.kind === "open-loop") {
      this.heads.forward(this.p, x, this.theta);
      this.theta_bar.fill(0);
    }
    const z = new Float64Array(this.size);
    z.set(x);
    if (this.driven) z.set(this.theta, this.state);
    return z;
  }

  slope(z, out) {
    if (!this.driven) return this.field.forward(this.theta, 0, z, out);
    this.field.forward(z, this.state, z, out);
    this.heads.forward(this.p, z, out, this.state);
  }

  pullback(z, k_bar, z_bar) {
    if (!this.driven) return this.field.pullback(this.theta, 0, z, k_bar, z_bar, this.theta_bar, 0);
    this.field.pullback(z, this.state, z, k_bar, z_bar, z_bar, this.state);
    this.heads.pullback(this.p, z, k_bar, this.state, z_bar, this.p_bar);
  }

  /** The last part of the gradient: from the state and the control at t = 0 to the parameters. */
  finish(z_bar) {
    if (this.driven) for (let j = 0; j < this.field.size; j++) this.theta_bar[j] += z_bar[this.state + j];
    if (this.kind === "open-loop") this.heads.pullback(this.p, this.x, this.theta_bar, 0, null, this.p_bar);
  }

  /** The logit of class 1 at the end state. */
  read(z) {
    let logit = this.p[this.readAt + this.state];
    for (let j = 0; j < this.state; j++) logit += this.p[this.readAt + j] * z[j];
    return logit;
  }

  /** The control at the state z. */
  control(z) {
    return this.driven ? z.subarray(this.state) : this.theta;
  }

  /** dx/dt at x under a given control: the field that one sample sees. */
  fieldAt(theta, x, out) {
    this.field.forward(theta, 0, x, out);
    return out;
  }
}
