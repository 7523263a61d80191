// The panels beside the flow: the control, the steps and the loss.

/** The weights of the field at time t as a heat map and, if they are the sample's own, each of them over time. */
function drawControl(surface, palette, model, sample, t) {
  surface.begin();
  const sizeAt = (time) => sample.controlAt(time).reduce((size, value) => Math.max(size, Math.abs(value)), 0);
  const sizes = (model.driven ? TIMES : [t]).map(sizeAt);
  const largest = Math.max(...sizes, 1e-9);
  const middle = mix(palette.soft, palette.firm, 0.15);
  const colour = (value) => diverging(palette.below, middle, palette.above, value / largest);
  const right = drawWeights(surface, palette, model, sample.controlAt(t), colour);
  if (model.shared) drawScale(surface, palette, colour, largest);
  else drawWeightsOverTime(surface, palette, sample, t, colour, largest, right + 34);
}

/** Matrices and biases, with the units of the hidden layers downwards. Returns where they end. */
function drawWeights(surface, palette, model, theta, colour) {
  const last = model.hidden.length + 1;
  const blocks = model.tensors.map((tensor) => {
    const [, kind, layer] = /(weight|bias)_(\d)/.exec(tensor.name);
    const turned = kind === "weight" ? Number(layer) === last : Number(layer) !== last;
    const [rows, columns] = turned ? [tensor.columns, tensor.rows] : [tensor.rows, tensor.columns];
    return { ...tensor, turned, rows, columns, label: `${kind === "weight" ? "W" : "b"}${"₁₂₃"[layer - 1]}` };
  });
  const tallest = Math.max(...blocks.map(({ rows }) => rows));
  const cell = Math.min((surface.height - 18) / tallest, 12);
  const side = cell > 6 ? cell - 1 : cell;
  let left = 1;
  for (const { rows, columns, offset, turned, label } of blocks) {
    surface.text(label, left, 11, css(palette.quiet));
    for (const i of range(rows)) {
      for (const j of range(columns)) {
        surface.context.fillStyle = css(colour(theta[offset + (turned ? j * rows + i : i * columns + j)]));
        surface.context.fillRect(left + j * cell, 17 + i * cell, side, side);
      }
    }
    left += Math.max(columns * cell, 14) + 12;
  }
  return left - 12;
}

function drawWeightsOverTime(surface, palette, sample, t, colour, largest, left) {
  surface.frame([0, 1], [-largest, largest], [17, 4, 14, left]);
  const controls = TIMES.map((time) => sample.controlAt(time));
  surface.line([[0, 0], [1, 0]], css(palette.line));
  controls[0].forEach((_, i) => {
    surface.line(controls.map((theta, k) => [TIMES[k], theta[i]]), css(colour(controls.at(-1)[i]), 0.9), 1.2);
  });
  surface.line([[t, -largest], [t, largest]], css(palette.firm), 1, [3, 3]);
  const ink = css(palette.quiet);
  surface.text("θ(t)", surface.px(0), 11, ink);
  surface.text(minus(largest.toPrecision(2)), left - 4, 17, ink, "right", "top");
  surface.text(minus((-largest).toPrecision(2)), left - 4, surface.height - 14, ink, "right", "bottom");
  surface.text("0", surface.px(0), surface.height - 2, ink);
  surface.text("t = 1", surface.px(1), surface.height - 2, ink, "right");
}

/** What the colours of the heat map mean, at its right. */
function drawScale(surface, palette, colour, largest) {
  const [right, top, height] = [surface.width - 12, 17, surface.height - 22];
  for (const i of range(Math.round(height))) {
    surface.context.fillStyle = css(colour(largest * (1 - (2 * i) / (height - 1))));
    surface.context.fillRect(right, top + i, 8, 1);
  }
  surface.text(largest.toPrecision(2), right - 4, top + 2, css(palette.quiet), "right", "top");
  surface.text(minus((-largest).toPrecision(2)), right - 4, top + height, css(palette.quiet), "right", "bottom");
}

/** The attempts of one sample over time: accepted steps below, rejected ones above. */
function drawSteps(surface, palette, { attempts }, t) {
  surface.begin().frame([0, 1], [0, 2], [3, 1, 14, 1]);
  let number = 0;
  for (const { t: from, h, accepted } of attempts) {
    if (accepted) surface.bar(from, from + h, 0, 0.95, css(palette.accepted, number++ % 2 ? 0.65 : 1), 0.5);
    else surface.bar(from, Math.min(from + h, 1), 1.15, 1.8, css(palette.rejected, 0.45), 0.5);
  }
  surface.line([[t, 0], [t, 2]], css(palette.ink), 1, [3, 3]);
  surface.text("t = 0", 1, surface.height - 2, css(palette.quiet));
  surface.text("1", surface.width - 1, surface.height - 2, css(palette.quiet), "right");
}

/** Numbers of accepted and rejected steps at each tolerance. */
function drawSweep(surface, palette, counts, tolerance) {
  const most = Math.max(...counts.map(({ accepted, rejected }) => accepted + rejected), 4);
  surface.begin().frame([0, counts.length], [0, most * 1.15], [4, 1, 16, 1]);
  counts.forEach((each, i) => {
    const now = each.tolerance === tolerance;
    surface.bar(i, i + 1, 0, each.accepted, css(palette.accepted, now ? 1 : 0.5), 4);
    surface.bar(i, i + 1, each.accepted, each.accepted + each.rejected, css(palette.rejected, now ? 1 : 0.5), 4);
    const total = each.accepted + each.rejected;
    const [middle, ink] = [surface.px(i + 0.5), css(now ? palette.ink : palette.quiet)];
    surface.text(String(total), middle, surface.py(total) - 3, ink, "center");
    surface.text(`10${superscript(Math.round(Math.log10(each.tolerance)))}`, middle, surface.height - 3, ink, "center");
  });
}

const superscript = (power) => String(power).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);

/** Accepted and rejected steps of every sample, in the order of the data. */
function drawAll(surface, palette, all) {
  const most = Math.max(...all.map(({ accepted, rejected }) => accepted + rejected), 4);
  surface.begin().frame([0, Math.max(all.length, 1)], [0, most], [3, 1, 1, 1]);
  const gap = all.length > 60 ? 0.3 : 0.8;
  all.forEach(({ accepted, rejected }, i) => {
    surface.bar(i, i + 1, 0, accepted, css(palette.accepted), gap);
    surface.bar(i, i + 1, accepted, accepted + rejected, css(palette.rejected), gap);
  });
}

/** The loss on a logarithmic scale, over the steps taken: a thinned curve may end before the last. */
function drawLoss(surface, palette, curve, last) {
  surface.begin();
  if (curve.length < 2) {
    surface.text("Press Train to see it fall.", 1, 24, css(palette.quiet));
    return;
  }
  const logs = curve.map(([step, loss]) => [step, Math.log10(Math.max(loss, 1e-12))]);
  const values = logs.map(([, value]) => value);
  const [low, high] = [Math.floor(Math.min(...values)), Math.ceil(Math.max(...values) + 1e-9)];
  surface.frame([0, last], [low, Math.max(high, low + 1)], [8, 2, 16, 30]);
  const every = Math.ceil((high - low) / 4);
  for (let power = low; power <= high; power += every) {
    surface.line([[0, power], [last, power]], css(palette.line));
    surface.text(`10${superscript(power)}`, 0, surface.py(power), css(palette.quiet), "left", "middle");
  }
  const skip = Math.ceil(logs.length / 600);
  surface.line(logs.filter((_, i) => i % skip === 0), css(palette.link), 1.5);
  surface.text("0", surface.px(0), surface.height - 2, css(palette.quiet));
  surface.text(`${last} steps`, surface.width - 2, surface.height - 2, css(palette.quiet), "right");
}
