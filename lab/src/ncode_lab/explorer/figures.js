// The figures. Each takes a surface, the palette, and what to show.

const minus = (value) => String(value).replaceAll("-", "−");

/** The colour of a sample: its class, or where it starts between left (or below) and right. */
function sampleColour(palette, task, x, y) {
  if (task.classify) return y === 1 ? palette.one : palette.zero;
  return diverging(palette.zero, palette.middle, palette.one, x[0]);
}

/** The square of inputs: regions, given points, and the chosen sample. */
function drawInput(surface, palette, { task, picture, sample, zoom }) {
  surface.begin().frame([-zoom, zoom], [-zoom, zoom]);
  if (picture) drawRegion(surface, palette, task, picture);
  surface.grid([-1, 0, 1], [-1, 0, 1], { ...palette, line: mix(palette.line, palette.firm, 0.25) }, minus);
  task.data.x.forEach((x, i) => {
    surface.dot(...x, 3.6, css(sampleColour(palette, task, x, task.data.y[i])), css(palette.paper), 1);
  });
  drawHandle(surface, palette, sample.x);
}

function drawRegion(surface, palette, task, { size, values }) {
  const between = mix(mix(palette.zero, palette.one, 0.5), palette.paper, 0.6);
  const image = new ImageData(size, size);
  values.forEach((value, i) => {
    const colour = task.classify
      ? diverging(palette.zero, between, palette.one, 2 * value - 1)
      : mix(palette.paper, palette.rejected, Math.min(value, 1));
    image.data.set([...colour, task.classify ? 120 : 150], 4 * i);
  });
  const small = drawRegion.canvas ?? (drawRegion.canvas = document.createElement("canvas"));
  [small.width, small.height] = [size, size];
  small.getContext("2d").putImageData(image, 0, 0);
  surface.context.imageSmoothingEnabled = true;
  surface.context.drawImage(small, 0, 0, surface.width, surface.height);
}

/** The chosen sample, as something to take hold of. */
function drawHandle(surface, palette, [a, b]) {
  surface.dot(a, b, 8, css(palette.paper, 0.75), css(palette.ink), 2);
  surface.dot(a, b, 3, css(palette.ink));
}

/** The plane at time t: trajectories so far, and the field that the chosen sample sees there. */
function drawPlane(surface, palette, scene) {
  const { task, model, all, sample, t, box: { a, b, r }, readOut } = scene;
  surface.begin().frame([a - r, a + r], [b - r, b + r]);
  if (readOut) drawReadOut(surface, palette, readOut, Math.hypot(a, b) + r);
  surface.grid(marksBetween(a - r, a + r), marksBetween(b - r, b + r), palette, minus);
  drawFieldOfSample(surface, palette, model, sample, t, scene.box);
  const until = Math.round(t * FRAMES);
  const colours = all.map((_, i) => sampleColour(palette, task, task.data.x[i], task.data.y[i]));
  const faint = Math.min(0.5, 30 / Math.max(all.length, 1));
  all.forEach(({ path }, i) => surface.line(path.slice(0, until + 1), css(colours[i], faint), 1));
  if (!task.classify) task.data.y.forEach((goal, i) => surface.dot(...goal, 5, null, css(colours[i]), 1.2));
  all.forEach(({ path }, i) => {
    if (path.length) surface.dot(path[until][0], path[until][1], 3.2, css(colours[i]), css(palette.paper), 1);
  });
  drawSamplePath(surface, palette, sample, t, ([a, b]) => [a, b]);
}

/** The half-planes of the read-out at t = 1, and the line between them. */
function drawReadOut(surface, palette, [a, b, c], reach) {
  const [w, h] = [surface.width, surface.height];
  const length = Math.hypot(a, b) || 1;
  const [nx, ny] = [a / length, b / length];
  const [x, y] = [(-c * a) / length ** 2, (-c * b) / length ** 2]; // the point of the line that is nearest to 0
  const far = 4 * reach + Math.abs(c) / length;
  const ends = [[x - far * ny, y + far * nx], [x + far * ny, y - far * nx]];
  const { context } = surface;
  context.save();
  context.beginPath();
  context.rect(0, 0, w, h);
  context.clip();
  for (const [side, colour] of [[1, palette.one], [-1, palette.zero]]) {
    const corners = [...ends, ...ends.toReversed().map(([u, v]) => [u + side * far * nx, v + side * far * ny])];
    context.beginPath();
    for (const [u, v] of corners) context.lineTo(surface.px(u), surface.py(v));
    context.fillStyle = css(colour, 0.1);
    context.fill();
  }
  surface.line(ends, css(palette.firm), 1, [5, 4]);
  context.restore();
}

function drawFieldOfSample(surface, palette, model, sample, t, box, count = 15) {
  const z = sample.stateAt(t).slice(0, model.state);
  const theta = sample.controlAt(t);
  const slope = new Float64Array(model.state);
  const places = (middle) => range(count).map((i) => middle + box.r * ((2 * i + 1) / count - 1));
  const arrows = places(box.a).flatMap((a) => places(box.b).map((b) => {
    model.fieldAt(theta, [a, b, ...z.slice(2)], slope);
    return [a, b, slope[0], slope[1]];
  }));
  const largest = Math.max(...arrows.map(([, , u, v]) => Math.hypot(u, v)), 1e-9);
  const cell = surface.width / count;
  for (const [a, b, u, v] of arrows) {
    const size = Math.hypot(u, v);
    const length = 0.9 * cell * Math.sqrt(size / largest);
    if (length > 1) surface.arrow(a, b, (length * u) / size, (-length * v) / size, css(palette.arrow), 1);
  }
}

function drawSamplePath(surface, palette, sample, t, place) {
  if (!sample.path.length) return;
  const points = sample.path.map(place);
  const until = Math.round(t * FRAMES);
  surface.line(points.slice(until), css(palette.ink), 1.5, [2, 5]);
  surface.line(points.slice(0, until + 1), css(palette.paper), 5);
  surface.line(points.slice(0, until + 1), css(palette.ink), 2.5);
  drawHandle(surface, palette, points[until]);
}

/** The line over time: all trajectories, their targets, and the field that the chosen sample sees. */
function drawLine(surface, palette, scene) {
  const { task, model, all, sample, t } = scene;
  const reach = 1.25;
  surface.begin().frame([0, 1], [-reach, reach], [8, 16, 20, 26]);
  surface.grid([0, 0.5, 1], [-1, 0, 1], palette, minus);
  surface.text("t", surface.px(0.75), surface.height - 5, css(palette.quiet));
  surface.text("x", 4, surface.py(0.5), css(palette.quiet));
  drawSlopes(surface, palette, model, sample, reach);
  all.forEach(({ path }, i) => {
    const colour = sampleColour(palette, task, task.data.x[i], 0);
    surface.line(path.map((z, k) => [TIMES[k], z[0]]), css(colour, 0.85), 1.5);
    surface.dot(1, task.data.y[i][0], 4.5, css(palette.paper), css(colour), 1.5);
  });
  surface.line([[t, -reach], [t, reach]], css(palette.firm), 1, [3, 3]);
  const until = Math.round(t * FRAMES);
  all.forEach(({ path }, i) => {
    if (path.length) surface.dot(t, path[until][0], 3, css(sampleColour(palette, task, task.data.x[i], 0)));
  });
  if (!sample.path.length) return;
  const points = sample.path.map((z, k) => [TIMES[k], z[0]]);
  surface.line(points, css(palette.paper), 5);
  surface.line(points, css(palette.ink), 2.5);
  surface.dot(t, points[until][1], 4, css(palette.ink));
  drawHandle(surface, palette, [0, sample.x[0]]);
}

function drawSlopes(surface, palette, model, sample, reach) {
  const slope = new Float64Array(model.state);
  const [columns, rows] = [Math.max(8, Math.round(surface.width / 34)), Math.max(8, Math.round(surface.height / 30))];
  const [perTime, perX] = [surface.px(1) - surface.px(0), surface.py(0) - surface.py(1)];
  for (const i of range(columns)) {
    const time = (i + 0.5) / columns;
    const z = sample.stateAt(time);
    const theta = sample.controlAt(time);
    for (const j of range(rows)) {
      const x = reach * ((2 * j + 1) / rows - 1);
      model.fieldAt(theta, [x, ...z.slice(1, model.state)], slope);
      const [u, v] = [perTime, -slope[0] * perX];
      const length = 18 / Math.hypot(u, v);
      surface.arrow(time, x, length * u, length * v, css(palette.arrow), 1);
    }
  }
}

/** All trajectories, small: the picture on a model's card. */
function drawThumbnail(surface, palette, { task, all }) {
  const wide = surface.begin().width / surface.height;
  if (task.dim === 1) surface.frame([-0.03, 1.03], [-1.15, 1.15], [6, 8, 6, 8]);
  else {
    const { a, b, r } = boxOf(all);
    surface.frame([a - r * wide, a + r * wide], [b - r, b + r], [4, 4, 4, 4]);
  }
  all.forEach(({ path }, i) => {
    const colour = sampleColour(palette, task, task.data.x[i], task.data.y[i]);
    const points = task.dim === 1 ? path.map((z, k) => [TIMES[k], z[0]]) : path;
    surface.line(points, css(colour, task.dim === 1 ? 0.9 : 0.35), task.dim === 1 ? 1.3 : 1);
    if (points.length) surface.dot(points.at(-1)[0], points.at(-1)[1], 1.8, css(colour));
  });
}

/** A square {a, b, r}, centre and half its side, that holds nearly all of some trajectories. */
function boxOf(all, least = 1.2) {
  const [a, b] = [0, 1].map((j) => {
    const values = all.flatMap(({ path }) => path.map((z) => z[j])).sort((u, v) => u - v);
    const at = (share) => values[Math.round(share * (values.length - 1))] ?? 0;
    return { middle: (at(0.003) + at(0.997)) / 2, half: (at(0.997) - at(0.003)) / 2 };
  });
  return { a: a.middle, b: b.middle, r: Math.max(least, 1.12 * Math.max(a.half, b.half)) };
}

/** Round numbers from low to high, at most seven. */
function marksBetween(low, high) {
  const every = [0.5, 1, 2, 5, 10, 20, 50, 100].find((step) => (high - low) / step <= 7) ?? (high - low) / 4;
  const first = Math.ceil(low / every);
  return range(Math.floor(high / every) - first + 1).map((i) => (first + i) * every);
}
