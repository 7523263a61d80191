// The tasks, and the random numbers of the page.
//
// A task has a `dim`, a `title`, `data` {x, y} and `classify`: y is a class, 0 or 1, or a point where x should end.
// Coordinates are rounded to three decimals, so that the script of "Copy as Python" can print them exactly.

/** Numbers between 0 and 1, by Lehmer's generator s -> 48271 s mod 2^31 - 1, which any language repeats exactly. */
function* random(seed) {
  let s = 1 + (seed % 2147483646);
  for (;;) {
    s = (48271 * s) % 2147483647;
    yield s / 2147483647;
  }
}

/** Initial weights: each tensor of `size` numbers is uniform within its bound. */
function randomWeights(seed, bounds) {
  const numbers = random(1000 * seed + 1);
  const draw = () => 2 * numbers.next().value - 1;
  return Float64Array.from(bounds.flatMap(([size, bound]) => Array.from({ length: size }, () => bound * draw())));
}

const round = (value) => Math.round(value * 1000) / 1000 + 0; // + 0: no negative zero
const range = (count) => Array.from({ length: count }, (_, i) => i);

function line() {
  const x = range(25).map((i) => [round(-1 + i / 12)]);
  return { x, y: x.map(([a]) => [0 - a]) };
}

function mirror() {
  const axis = range(7).map((i) => round(-1 + i / 3));
  const x = axis.flatMap((a) => axis.map((b) => [a, b]));
  return { x, y: x.map(([a, b]) => [0 - a, b]) };
}

function annuli() {
  const numbers = random(7);
  const draw = (count, low, high) => range(count).map((i) => {
    const radius = (high - low) * Math.sqrt(numbers.next().value) + low;
    const angle = (2 * Math.PI * (i + numbers.next().value)) / count; // evenly around, so that there is no wide gap
    return [round(radius * Math.cos(angle)), round(radius * Math.sin(angle))];
  });
  return { x: [...draw(32, 0, 0.5), ...draw(64, 1, 1.5)], y: range(96).map((i) => (i < 32 ? 0 : 1)) };
}

function spirals() {
  const arm = (turn) => range(40).map((i) => {
    const radius = 0.15 + (1.3 * i) / 39;
    const angle = 4.2 * radius + turn;
    return [round(radius * Math.cos(angle)), round(radius * Math.sin(angle))];
  });
  return { x: [...arm(0), ...arm(Math.PI)], y: range(80).map((i) => (i < 40 ? 0 : 1)) };
}

/** Four groups of points, like a chessboard, to start from. */
function fourCorners() {
  const numbers = random(3);
  const near = (centre) => round(centre + 0.35 * (numbers.next().value - 0.5));
  const x = range(32).map((i) => [near(i % 2 ? 0.8 : -0.8), near(i % 4 < 2 ? 0.8 : -0.8)]);
  return { x, y: x.map(([a, b]) => (a * b > 0 ? 1 : 0)) };
}

const TASKS = {
  line: { title: "Reflection of the line, x → −x", dim: 1, classify: false, make: line },
  mirror: { title: "Reflection of the plane", dim: 2, classify: false, make: mirror },
  annuli: { title: "A disc and the annulus around it", dim: 2, classify: true, make: annuli },
  spirals: { title: "Two spirals", dim: 2, classify: true, make: spirals },
  own: { title: "Your own points", dim: 2, classify: true, make: fourCorners },
};

const makeTask = (name, data = null) => ({ name, ...TASKS[name], data: data ?? TASKS[name].make() });

/** Points as text, for the address of the page: x,y,class;... */
function writePoints({ x, y }) {
  return x.map(([a, b], i) => `${a},${b},${y[i]}`).join(";");
}

/** Points from such text; whatever is not a point of the square is left out. */
function readPoints(text) {
  const data = { x: [], y: [] };
  for (const entry of text.split(";").slice(0, 400)) {
    const [a, b, kind] = entry.split(",").map(Number);
    if (Math.abs(a) <= 2 && Math.abs(b) <= 2 && (kind === 0 || kind === 1)) {
      data.x.push([round(a), round(b)]);
      data.y.push(kind);
    }
  }
  return data;
}
