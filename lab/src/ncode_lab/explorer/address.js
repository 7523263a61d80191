// The state of the page, and its form in the address: #task=line&model=open-loop&...

const RATES = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05];
const DEFAULTS = { task: "line", model: "open-loop", seed: 0, tolerance: 1e-3, lr: 0.005, t: 1 };
const SAMPLES = { line: [0.75], mirror: [0.6, 0.35], annuli: [0.2, 0.3], spirals: [0.6, -0.4], own: [0.5, 0.6] };

const toFrame = (t) => Math.round(t * FRAMES) / FRAMES;

/** A state from the part of an address after #. What is missing or wrong gets its default. */
function readAddress(text) {
  const given = new URLSearchParams(text.replace(/^#/, ""));
  const choose = (name, known) => {
    const value = typeof known[0] === "number" ? Number(given.get(name)) : given.get(name);
    return known.includes(value) ? value : DEFAULTS[name];
  };
  const task = choose("task", Object.keys(TASKS));
  const between = (name, low, high) => {
    const value = Number(given.get(name) ?? NaN);
    return value >= low && value <= high ? value : DEFAULTS[name];
  };
  return {
    task,
    model: choose("model", MODELS),
    seed: Math.floor(between("seed", 0, 999)),
    tolerance: choose("tolerance", TOLERANCES),
    lr: choose("lr", RATES),
    t: toFrame(between("t", 0, 1)),
    sample: readSample(given.get("x"), TASKS[task].dim) ?? SAMPLES[task].slice(),
    points: given.has("points") ? readPoints(given.get("points")) : null,
    fromSeed: given.get("start") === "seed",
    history: readHistory(given.get("train") ?? ""),
  };
}

function readSample(text, dim) {
  const values = (text ?? "").split(",").map((each) => (each === "" ? NaN : Number(each)));
  return values.length === dim && values.every((value) => Math.abs(value) <= REACH) ? values.map(round) : null;
}

/** The training that a link repeats, as [steps, lr, tolerance]: at most 5,000 steps, with choices of the page. */
function readHistory(text) {
  let left = 5000;
  return text.split(";").flatMap((part) => {
    const [steps, lr, tolerance] = part.split(",").map(Number);
    if (!(Number.isInteger(steps) && steps > 0 && RATES.includes(lr) && TOLERANCES.includes(tolerance))) return [];
    const count = Math.min(steps, left);
    left -= count;
    return count ? [[count, lr, tolerance]] : [];
  });
}

/** The address of a state and its run: only what differs from the defaults. */
function writeAddress(state, run) {
  const parts = [`task=${state.task}`, `model=${state.model}`];
  for (const name of ["seed", "tolerance", "lr", "t"]) {
    if (state[name] !== DEFAULTS[name]) parts.push(`${name}=${state[name]}`);
  }
  if (String(state.sample) !== String(SAMPLES[state.task])) parts.push(`x=${state.sample.join(",")}`);
  if (state.points) parts.push(`points=${writePoints(state.points)}`);
  if (!run.shipped) parts.push("start=seed");
  if (run.history.length) parts.push(`train=${run.history.map((part) => part.join(",")).join(";")}`);
  return `#${parts.join("&")}`;
}
