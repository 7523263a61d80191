// Canvas helpers: sizes in CSS pixels, colours of the style sheet, lines, arrows and axes.

/** The colours of style.css, light or dark, as [r, g, b]. */
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "ink", "quiet", "line", "firm", "soft", "link", "zero", "one", "middle"];
  names.push("arrow", "accepted", "rejected", "below", "above");
  const parse = (text) => [1, 3, 5].map((at) => parseInt(text.trim().slice(at, at + 2), 16));
  return Object.fromEntries(names.map((name) => [name, parse(style.getPropertyValue(`--${name}`))]));
}

const css = ([r, g, b], alpha = 1) => `rgb(${r} ${g} ${b} / ${alpha})`;
const mix = (a, b, share) => a.map((value, i) => Math.round(value + (b[i] - value) * share));

/** From `low` over `middle` to `high`, for s from -1 to 1. */
const diverging = (low, middle, high, s) => mix(middle, s < 0 ? low : high, Math.min(Math.abs(s), 1));

/** A canvas in CSS pixels, and a frame of data coordinates in it. */
class Surface {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.frame([0, 1], [0, 1]);
  }

  /** Fit to the size on screen, and clear. */
  begin() {
    const { canvas, context } = this;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.width = canvas.clientWidth || 300;
    this.height = canvas.clientHeight || 150;
    const [w, h] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.lineJoin = context.lineCap = "round";
    context.font = "11px system-ui, sans-serif";
    return this;
  }

  /** Data coordinates: x from left to right and y from bottom to top, within margins in pixels. */
  frame(x, y, [top, right, bottom, left] = [0, 0, 0, 0]) {
    this.range = { x, y, top, right, bottom, left };
    return this;
  }

  px(x) {
    const { x: [low, high], left, right } = this.range;
    return left + ((x - low) / (high - low)) * (this.width - left - right);
  }

  py(y) {
    const { y: [low, high], top, bottom } = this.range;
    return this.height - bottom - ((y - low) / (high - low)) * (this.height - top - bottom);
  }

  /** Data coordinates of a place on the screen. */
  locate(event) {
    const box = this.canvas.getBoundingClientRect();
    const { x, y, top, right, bottom, left } = this.range;
    const across = (event.clientX - box.left - left) / (box.width - left - right);
    const down = (event.clientY - box.top - top) / (box.height - top - bottom);
    return [x[0] + across * (x[1] - x[0]), y[1] - down * (y[1] - y[0])];
  }

  line(points, colour, width = 1, dash = []) {
    const { context } = this;
    context.beginPath();
    for (const [x, y] of points) context.lineTo(this.px(x), this.py(y));
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dash);
    context.stroke();
    context.setLineDash([]);
  }

  dot(x, y, radius, fill, stroke = null, width = 1.5) {
    const { context } = this;
    context.beginPath();
    context.arc(this.px(x), this.py(y), radius, 0, 2 * Math.PI);
    if (fill) {
      context.fillStyle = fill;
      context.fill();
    }
    if (stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = width;
      context.stroke();
    }
  }

  /** A bar between data coordinates. */
  bar(x0, x1, y0, y1, colour, gap = 0) {
    const left = this.px(x0) + gap;
    this.context.fillStyle = colour;
    this.context.fillRect(left, this.py(y1), Math.max(this.px(x1) - gap - left, 1), this.py(y0) - this.py(y1));
  }

  /** An arrow by pixels (dx, dy), centred at data coordinates. */
  arrow(x, y, dx, dy, colour, width = 1) {
    const { context } = this;
    const [a, b] = [this.px(x) + dx / 2, this.py(y) + dy / 2];
    const head = Math.min(4, 0.45 * Math.hypot(dx, dy));
    const angle = Math.atan2(dy, dx);
    context.beginPath();
    context.moveTo(a - dx, b - dy);
    context.lineTo(a, b);
    for (const side of [-0.5, 0.5]) {
      context.moveTo(a, b);
      context.lineTo(a - head * Math.cos(angle + side), b - head * Math.sin(angle + side));
    }
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.stroke();
  }

  /** Text at pixels. */
  text(text, x, y, colour, align = "left", baseline = "alphabetic") {
    const { context } = this;
    context.textAlign = align;
    context.textBaseline = baseline;
    context.fillStyle = colour;
    context.fillText(text, x, y);
  }

  /** Thin lines with numbers at these values of x and y. */
  grid(xs, ys, palette, write = String) {
    const { x, y } = this.range;
    const [colour, ink] = [css(palette.line), css(palette.quiet)];
    for (const value of xs) {
      this.line([[value, y[0]], [value, y[1]]], colour);
      this.text(write(value), this.px(value) + 3, this.height - 4, ink);
    }
    for (const value of ys) {
      this.line([[x[0], value], [x[1], value]], colour);
      this.text(write(value), 3, this.py(value) - 3, ink);
    }
  }
}
