// "Copy as Python": a script that does with the library what the page does, and prints the same numbers.

const indent = (text) => text.replace(/^(?=.)/gm, "    ");
const python = (value) => JSON.stringify(value).replaceAll(",", ", ");

/** A long list in lines that end between its items. */
function wrapped(text, limit = 112) {
  const lines = [""];
  const between = /[\])], /.test(text) ? /(?<=[\])], )/ : /(?<= )/;
  for (const word of text.split(between)) {
    if (lines.at(-1).length + word.length > limit) lines.push("");
    lines[lines.length - 1] += word;
  }
  return lines.map((each) => each.trimEnd()).join("\n");
}

function blockLines(model) {
  const d = model.dim;
  const hidden = model.hidden.length > 1 ? `(${model.hidden.join(", ")})` : model.hidden[0];
  const trunk = `trunk = nn.Sequential(nn.Linear(${d}, ${WIDTH}), nn.Tanh())`;
  const mlp = `ncode.dynamics.MLP(${model.state}, hidden=${hidden})`;
  const shared = "controller = ncode.Static()  # theta is learned, the same for all samples";
  const parts = {
    node: [`f = ${mlp}`, shared],
    anode: [`f = ncode.dynamics.Augmented(${mlp}, zeros=${ZEROS})`, shared],
    "open-loop": [
      `f = ${mlp}`,
      trunk,
      "controller = ncode.OpenLoop(trunk, scale=1.0)  # theta = gamma(x(0)), one for each sample",
    ],
    "closed-loop": [
      `f = ${mlp}`,
      trunk,
      "controller = ncode.ClosedLoop(ncode.control.Feedback(trunk, scale=1.0))  # dtheta/dt = g(x), theta(0) learned",
    ],
  }[model.kind];
  return [...parts, `block = ncode.NCODE(f, controller, t1=1.0, method="dopri5")`];
}

function dataLines({ data }) {
  const tensor = (values) => `torch.tensor(\n${indent(`${wrapped(python(values))},\ndtype=torch.float64,`)}\n)`;
  return [`x = ${tensor(data.x)}`, `y = ${tensor(data.y)}`];
}

function lossLines({ classify }, model) {
  const seen = model.state > model.dim ? `[:, :${model.dim}]` : "";
  const body = classify
    ? ["logits = read_out(ends)[:, 0]", "return nn.functional.binary_cross_entropy_with_logits(logits, y)"]
    : [`return (ends${seen} - y).square().mean()`];
  const lines = ["ends = block.solve(x, rtol=tolerance, atol=tolerance).x", ...body];
  return `def loss_of(tolerance):\n${indent(lines.join("\n"))}`;
}

/** The weights that the training began with: shipped with the page, or made from a seed. */
function weightLines(run) {
  const { shipped } = run;
  if (shipped) {
    const text = wrapped(shipped.base64.replace(/.{100}(?=.)/g, "$& "))
      .split("\n").map((each) => `"${each}"`).join("\n");
    return [
      `# The weights that the explorer begins with: ${shipped.steps} steps from seed ${run.seed}, in single precision.`,
      `shipped = base64.b64decode(\n${indent(text)}\n)`,
      "weights = torch.frombuffer(bytearray(shipped), dtype=torch.float32).double()",
    ];
  }
  const bounds = run.model.bounds.map(([size, bound]) => `(${size}, ${bound})`).join(", ");
  return [
    "# The explorer's random numbers: s -> 48271 s mod 2^31 - 1. Each tensor of weights is uniform within its bound.",
    `s, weights = ${(1000 * run.seed + 1) % 2147483646 + 1}, []`,
    `for size, bound in [\n${indent(wrapped(bounds))}\n]:`,
    "    for _ in range(size):",
    "        s = 48271 * s % 2147483647",
    "        weights.append(bound * (2 * s / 2147483647 - 1))",
    "weights = torch.tensor(weights)",
  ];
}

/** The script for a run, the sample that is looked at, and the tolerance. */
function pythonScript(run, sample, tolerance) {
  const { model, task } = run;
  const network = task.classify ? "nn.Sequential(block, read_out)" : "block";
  return [
    `"""${task.title}, ${NAMES[model.kind]}: what the N-CODE explorer shows, done with the library."""`,
    "",
    ...(run.shipped ? ["import base64", ""] : []),
    "import torch\nfrom torch import nn\n\nimport ncode\n",
    "torch.set_default_dtype(torch.float64)",
    "torch.set_num_threads(1)  # such small tensors are slower on many threads",
    ...dataLines(task),
    "",
    ...blockLines(model),
    ...(task.classify ? [`read_out = nn.Linear(${model.state}, 1)`] : []),
    `model = ${network}`,
    "",
    ...weightLines(run),
    "nn.utils.vector_to_parameters(weights, model.parameters())",
    "\n",
    lossLines(task, model),
    "\n",
    "optimiser = torch.optim.Adam(model.parameters())",
    `for steps, lr, tolerance in [${run.history.map((part) => `(${part.join(", ")})`).join(", ")}]:`,
    '    optimiser.param_groups[0]["lr"] = lr',
    "    for _ in range(steps):",
    "        optimiser.zero_grad()",
    "        loss_of(tolerance).backward()",
    "        optimiser.step()",
    "",
    `sample = torch.tensor([${python(sample)}], dtype=torch.float64)`,
    `solution = block.solve(sample, rtol=${tolerance}, atol=${tolerance})`,
    `print(f"loss {loss_of(${tolerance}).item():.9g}")`,
    `print("the sample ends at", [round(value, 9) for value in solution.x[0].tolist()])`,
    `print(f"steps accepted {solution.stats.steps.item()}, rejected {solution.stats.rejected.item()}")`,
    "",
  ].join("\n");
}
