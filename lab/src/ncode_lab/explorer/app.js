// The page: state, loop, and what its controls do. SHIPPED, the trained weights, is inserted by Python.

const CONTROL_NOTES = {
  node: "θ, the same for every sample",
  anode: "θ, the same for every sample",
  "open-loop": "θ = γ(x(0)): drag the sample",
  "closed-loop": "dθ/dt = g(x): move in time",
};
const $ = (id) => document.getElementById(id);
const surfaces = Object.fromEntries(
  ["input", "flow", "control", "steps", "sweep", "all", "loss"].map((id) => [id, new Surface($(id))]),
);

let palette = readPalette();
let state = readAddress(location.hash);
let task = makeTask(state.task, state.points);
let runs = new Map(); // by model, of this task
let queue = []; // [steps, lr, tolerance] that a link asks to repeat
let region = new Region();
let training = false;
let playing = false;
let playhead = 0; // the time while it is played, not rounded
let box = null; // the part of the plane in view
let requested = false;
let lastFrame = 0;
const cards = new Map();
const cache = new Map(); // what was computed last under a name, with the key it belongs to

/** Shipped weights {weights, base64, curve, steps} of a model, or null. */
function shippedWeights(model, seed) {
  const found = SHIPPED[`${state.task}/${model}`];
  if (!found || seed !== 0 || state.points) return null;
  const bytes = Uint8Array.from(atob(found.weights), (character) => character.charCodeAt(0));
  return { ...found, base64: found.weights, weights: new Float32Array(bytes.buffer) };
}

function runOf(model) {
  if (!runs.has(model)) {
    const run = new Run(model, task, state.seed);
    const shipped = shippedWeights(model, state.seed);
    if (shipped) run.start(state.seed, shipped);
    runs.set(model, run);
  }
  return runs.get(model);
}
const current = () => runOf(state.model);

/** The value of `compute`, kept until its key changes. */
function cached(name, key, compute) {
  const text = String(key);
  if (cache.get(name)?.key !== text) cache.set(name, { key: text, value: compute() });
  return cache.get(name).value;
}

const followed = (model) => {
  const run = runOf(model);
  return cached(`all ${model}`, [state.task, run.version, state.tolerance], () => followAll(run, state.tolerance));
};
const chosenSample = () => {
  const run = current();
  const key = [state.task, state.model, run.version, state.tolerance, state.sample];
  return cached("sample", key, () => followSample(run, state.sample, state.tolerance));
};

const stepsByTolerance = () => {
  const run = current();
  // Eight solves, some of them to tight tolerances: too many for every frame of a training.
  const key = training ? cache.get("sweep")?.key : [state.task, state.model, run.version, state.sample];
  return cached("sweep", key, () => sweepTolerance(run, state.sample));
};

// The loop: train, move in time, compute regions, draw; again as long as something changes.

function request() {
  if (requested) return;
  requested = true;
  requestAnimationFrame(frame);
}

function frame(now) {
  requested = false;
  const run = current();
  if (training || queue.length) trainFor(run, 14);
  if (playing) advanceTime(now);
  lastFrame = now;
  const moving = training || queue.length > 0;
  const key = [run.version, state.tolerance].join();
  const size = () => (moving ? 30 : region.shown ? 60 : 20); // the first picture is coarse, and there at once
  const pass = { key, size: size(), finish: moving, milliseconds: moving ? 8 : region.shown ? 20 : 60 };
  if (task.dim > 1) region.work(run, state.tolerance, pass);
  draw();
  if (moving || playing || (task.dim > 1 && region.isOutdated(key, size()))) request();
  else settle();
}

function trainFor(run, milliseconds) {
  const until = performance.now() + milliseconds;
  do {
    const [, lr, tolerance] = queue[0] ?? [1, state.lr, state.tolerance];
    run.train(tolerance, lr);
    if (queue.length && --queue[0][0] === 0) queue.shift();
    if (run.failed) {
      queue = [];
      setTraining(false);
    }
  } while ((training || queue.length) && performance.now() < until);
}

const still = matchMedia("(prefers-reduced-motion: reduce)");

/** Move in time, from 0 to 1 in four seconds; in ten jumps where motion is to be reduced. */
function advanceTime(now) {
  playhead = Math.min(playhead + Math.min(now - lastFrame, 100) / 4000, 1);
  state.t = still.matches ? Math.floor(10 * playhead) / 10 : toFrame(playhead);
  if (playhead === 1) setPlaying(false);
}

/** Nothing moves any more: say what is seen, and keep it in the address. */
function settle() {
  $("status").textContent = describe();
  try {
    history.replaceState(null, "", writeAddress(state, current()));
  } catch {
    // A sandboxed frame has no address to keep.
  }
}

// Drawing.

function draw() {
  const run = current();
  const { model } = run;
  const { all, loss } = followed(state.model);
  const sample = chosenSample();
  box = easeTo(boxOf([...all, sample]));
  const readOut = task.classify && model.state === 2 ? run.p.subarray(model.readAt) : null;
  const scene = { task, model, all, sample, t: state.t, box, readOut };
  if (task.dim === 1) drawLine(surfaces.flow, palette, scene);
  else {
    drawInput(surfaces.input, palette, { task, picture: region.shown, sample, zoom: REACH });
    drawPlane(surfaces.flow, palette, scene);
  }
  drawControl(surfaces.control, palette, model, sample, state.t);
  drawSteps(surfaces.steps, palette, sample, state.t);
  drawSweep(surfaces.sweep, palette, stepsByTolerance(), state.tolerance);
  drawAll(surfaces.all, palette, all);
  drawLoss(surfaces.loss, palette, run.curve, run.steps);
  for (const name of MODELS) drawCard(name);
  writeNotes(run, sample, all, loss);
}

/** During training the view follows the trajectories slowly, so that it does not jump. */
function easeTo(next) {
  if (!training || !box) return next;
  const follow = (name) => box[name] + 0.12 * (next[name] - box[name]);
  return { a: follow("a"), b: follow("b"), r: follow("r") };
}

function drawCard(name) {
  const found = followed(name);
  const card = cards.get(name);
  const { surface, facts } = card;
  const seen = [found, palette, surface.canvas.clientWidth];
  if (card.seen?.every((value, i) => value === seen[i])) return;
  card.seen = seen;
  drawThumbnail(surface, palette, { task, all: found.all });
  const loss = shortNumber(found.loss);
  const score = task.classify ? `${Math.floor(100 * found.right + 1e-9)} % right, loss ${loss}` : `error ${loss}`;
  setText(facts, task.data.x.length ? score : "no points yet");
}

function writeNotes(run, sample, all, loss) {
  const most = Math.max(...all.map(({ accepted, rejected }) => accepted + rejected), 0);
  setText($("control-note"), CONTROL_NOTES[state.model]);
  setText($("steps-note"), `${sample.accepted} accepted, ${sample.rejected} rejected`);
  setText($("all-note"), `at most ${most}`);
  setText($("loss-note"), `${shortNumber(loss)} · ${run.steps} steps · ${run.model.parameters} parameters`);
  setText($("caption"), caption(run));
  $("time").value = state.t;
  setText($("time-value"), `t = ${state.t.toFixed(2)}`);
}

function caption(run) {
  if (!task.data.x.length) return "Add points of both classes, then train.";
  if (run.failed) return "The loss is not finite any more: start from the seed, with a smaller learning rate.";
  return (run.steps < 40 ? "Hardly trained yet: press Train and watch. " : "") + CAPTIONS[state.task][state.model];
}

const setText = (element, text) => element.textContent !== text && (element.textContent = text);

function shortNumber(value) {
  if (!Number.isFinite(value)) return "–";
  return minus(value < 1e-2 ? value.toExponential(1) : value.toPrecision(3));
}

function writePoint(values) {
  const text = values.map((value) => minus((Math.round(100 * value) / 100 + 0).toFixed(2))).join(", ");
  return values.length > 1 ? `(${text})` : text;
}

/** The chosen sample in words, for those who do not see the figures. */
function describe() {
  const sample = chosenSample();
  const { model } = current();
  if (!sample.ok) return `The solve of the sample at ${writePoint(state.sample)} failed: its field is too steep.`;
  const end = writePoint([...sample.z.subarray(0, model.dim)]);
  const goal = task.classify
    ? `, class 1 with probability ${sample.probability.toFixed(2)}`
    : `; its target is ${writePoint(state.sample.map((value, j) => (j === 0 ? 0 - value : value)))}`;
  return `The sample at ${writePoint(state.sample)} ends at ${end}${goal}. ${sample.nfe} evaluations of the field.`;
}

// Changes of state.

function setTraining(on) {
  training = on && task.data.x.length > 0;
  $("train").textContent = training ? "Pause" : "Train";
  if (training) $("status").textContent = "Training …";
  request();
}

function setPlaying(on) {
  playing = on;
  if (on) playhead = state.t = state.t < 1 ? state.t : 0;
  $("play").textContent = on ? "Stop" : "Play";
  request();
}

function setSample(values) {
  state.sample = values.map((value) => round(Math.min(Math.max(value, -REACH), REACH)));
  request();
}

/** Another task, or other points of it: all models start again. */
function setTask(name, points = null) {
  const other = name !== state.task;
  Object.assign(state, { task: name, points });
  if (other) state.sample = SAMPLES[name].slice();
  task = makeTask(name, points);
  runs = new Map();
  queue = [];
  cache.clear();
  [region, box] = [new Region(), null];
  $("train").disabled = $("step").disabled = $("python").disabled = !task.data.x.length;
  if (!task.data.x.length) setTraining(false);
  showTask();
}

function setModel(name) {
  state.model = name;
  queue = [];
  region = new Region();
  request();
}

function restart() {
  queue = [];
  current().start(state.seed);
  request();
}

function showTask() {
  const plane = task.dim > 1;
  $("task").value = state.task;
  $("input-figure").hidden = !plane;
  $("input-figure").parentElement.classList.toggle("single", !plane);
  $("tools").hidden = state.task !== "own";
  $("input-title").textContent = task.classify
    ? "Input and predicted class. Drag the sample."
    : "Input; red: target missed. Drag the sample.";
  $("flow-title").textContent = plane
    ? `Flow until t, field of the sample${task.classify ? "" : ", targets"}`
    : "All samples over time, and the field of the chosen one. Rings: targets. Drag the sample.";
  request();
}

/** Show the state of an address. */
function load(text) {
  setTraining(false);
  setPlaying(false);
  state = readAddress(text);
  setTask(state.task, state.points);
  const run = current();
  if (state.fromSeed) run.start(state.seed);
  queue = state.history;
  $("seed").value = state.seed;
  $("lr").value = state.lr;
  $("tolerance").value = state.tolerance;
  cards.get(state.model).input.checked = true;
  request();
}
