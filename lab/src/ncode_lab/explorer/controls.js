// Controls: buttons, keys, mouse and touch. The last file: it starts the page.

function addOptions(select, values, label) {
  for (const value of values) select.add(new Option(label(value), value));
}

function addCards() {
  for (const name of MODELS) {
    const card = document.createElement("label");
    card.className = "card";
    const input = Object.assign(document.createElement("input"), { type: "radio", name: "model", value: name });
    const canvas = document.createElement("canvas");
    canvas.setAttribute("aria-hidden", "true");
    const title = Object.assign(document.createElement("span"), { className: "name", textContent: NAMES[name] });
    const facts = Object.assign(document.createElement("span"), { className: "facts" });
    card.append(input, canvas, title, facts);
    $("models").append(card);
    input.addEventListener("change", () => setModel(name));
    cards.set(name, { input, facts, surface: new Surface(canvas) });
  }
}

// The sample is dragged; on a phone a finger that starts elsewhere scrolls the page, and a tap moves the sample there.

function isNearSample(surface, event) {
  const [a, b] = task.dim === 1 ? [0, state.sample[0]] : state.sample;
  const box = surface.canvas.getBoundingClientRect();
  return Math.hypot(event.clientX - box.left - surface.px(a), event.clientY - box.top - surface.py(b)) < 36;
}

/** Let the mouse or a finger move the sample or, with another tool, draw points. */
function makeDraggable(surface, isActive = () => true) {
  const { canvas } = surface;
  let held = null; // what is held moves to a place
  const place = ([a, b]) => setSample(task.dim === 1 ? [b] : [a, b]);
  const take = () => (tool() === "move" ? place : paint());
  // A finger is for the page to scroll, unless it takes the sample or draws.
  const isForUs = (touch) => isActive() && (tool() !== "move" || isNearSample(surface, touch));
  const onTouch = (event) => isForUs(event.touches[0]) && event.preventDefault();
  canvas.addEventListener("touchstart", onTouch, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (!isActive() || (event.pointerType === "touch" && !isForUs(event))) return;
    held = take();
    canvas.setPointerCapture(event.pointerId);
    held(surface.locate(event));
  });
  canvas.addEventListener("pointermove", (event) => held?.(surface.locate(event)));
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (held = null));
  canvas.addEventListener("click", (event) => isActive() && tool() === "move" && place(surface.locate(event)));
}

/** Draw (or erase) a point here, and another one wherever the pointer has moved far enough. */
function paint() {
  let last = [Infinity, Infinity];
  return (place) => {
    if (Math.hypot(place[0] - last[0], place[1] - last[1]) < 0.12) return;
    last = place;
    editPoints(place, tool());
  };
}

/** On the flow of the plane a click chooses the nearest given point at that time. */
function chooseNearest(event) {
  const place = surfaces.flow.locate(event);
  const frameNumber = Math.round(state.t * FRAMES);
  let [best, nearest] = [-1, Infinity];
  followed(state.model).all.forEach(({ path }, i) => {
    if (!path.length) return;
    const distance = Math.hypot(path[frameNumber][0] - place[0], path[frameNumber][1] - place[1]);
    if (distance < nearest) [best, nearest] = [i, distance];
  });
  if (best >= 0) setSample(task.data.x[best]);
}

const tool = () => (state.task === "own" ? document.querySelector("[name=tool]:checked").value : "move");

/** Add a point of class "0" or "1", or erase the nearest one. The models start again, from the seed. */
function editPoints([a, b], action) {
  const x = task.data.x.slice();
  const y = task.data.y.slice();
  if (action === "erase") {
    const distances = x.map(([u, v]) => Math.hypot(u - a, v - b));
    const nearest = distances.indexOf(Math.min(...distances));
    if (nearest < 0 || distances[nearest] > 0.25) return;
    x.splice(nearest, 1);
    y.splice(nearest, 1);
  } else if (Math.max(Math.abs(a), Math.abs(b)) <= REACH && x.length < 200) {
    x.push([round(a), round(b)]);
    y.push(Number(action));
  }
  setTask("own", { x, y });
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1] };

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const by = event.shiftKey ? 0.01 : 0.05;
  const given = task.data.x;
  const at = given.findIndex((x) => String(x) === String(state.sample));
  const axis = (j) => (task.dim === 1 ? 1 : j); // on the line, up and down move the sample
  if (ARROWS[event.key]) setSample(state.sample.map((value, j) => value + by * ARROWS[event.key][axis(j)]));
  else if (event.key === "PageDown" && given.length) setSample(given[(at + 1) % given.length]);
  else if (event.key === "PageUp" && given.length) setSample(given.at(at > 0 ? at - 1 : -1));
  else if (state.task === "own" && (event.key === "0" || event.key === "1")) editPoints(state.sample, event.key);
  else if (state.task === "own" && event.key === "Delete") editPoints(state.sample, "erase");
  else return;
  event.preventDefault();
}

async function copy(text, note, instead) {
  try {
    await navigator.clipboard.writeText(text);
    note.textContent = "Copied.";
  } catch {
    note.textContent = `This browser does not allow it: ${instead}.`;
  }
}

function connect() {
  addCards();
  addOptions($("task"), Object.keys(TASKS), (name) => TASKS[name].title);
  addOptions($("lr"), RATES, String);
  addOptions($("tolerance"), TOLERANCES, (value) => `10${superscript(Math.round(Math.log10(value)))}`);

  const on = (id, name, action) => $(id).addEventListener(name, action);
  on("task", "change", (event) => setTask(event.target.value));
  on("train", "click", () => setTraining(!training));
  on("step", "click", () => (current().train(state.tolerance, state.lr), request()));
  on("restart", "click", restart);
  on("seed", "change", (event) => {
    state.seed = Math.min(Math.max(Math.floor(Number(event.target.value)) || 0, 0), 999);
    event.target.value = state.seed;
    for (const model of MODELS) runOf(model).start(state.seed, shippedWeights(model, state.seed));
    request();
  });
  on("lr", "change", (event) => ((state.lr = Number(event.target.value)), request()));
  on("tolerance", "change", (event) => ((state.tolerance = Number(event.target.value)), request()));
  on("time", "input", (event) => {
    setPlaying(false);
    state.t = Number(event.target.value);
  });
  on("play", "click", () => setPlaying(!playing));
  on("clear", "click", () => setTask("own", { x: [], y: [] }));

  makeDraggable(surfaces.input);
  makeDraggable(surfaces.flow, () => task.dim === 1);
  on("flow", "click", (event) => task.dim > 1 && chooseNearest(event));
  for (const id of ["input", "flow"]) on(id, "keydown", onKey);

  on("python", "click", () => {
    $("script-text").textContent = pythonScript(current(), state.sample, state.tolerance);
    $("script-copied").textContent = "";
    $("script").showModal();
  });
  const address = () => location.href.replace(/#.*/, "") + writeAddress(state, current());
  on("link", "click", () => copy(address(), $("copied"), "copy the address of this page"));
  const script = () => $("script-text").textContent;
  on("script-copy", "click", () => copy(script(), $("script-copied"), "select the text and copy it"));
  on("script-close", "click", () => $("script").close());

  addEventListener("hashchange", () => load(location.hash));
  addEventListener("resize", request);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => ((palette = readPalette()), request()));
}

connect();
load(location.hash);
frame(performance.now()); // the first picture at once
