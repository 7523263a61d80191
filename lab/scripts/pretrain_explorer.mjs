// Train the models that the explorer begins with, with its own solver, and write them to pretrained.json.
//
//     node lab/scripts/pretrain_explorer.mjs        (a minute or two)

import { readFileSync, writeFileSync } from "node:fs";
import { runInThisContext } from "node:vm";

const folder = new URL("../src/ncode_lab/explorer/", import.meta.url);
const sources = ["solver.js", "model.js", "tasks.js", "training.js"].map((name) => readFileSync(new URL(name, folder), "utf8"));
const { Run, MODELS, TASKS, makeTask } = runInThisContext(`${sources.join("\n")}; ({ Run, MODELS, TASKS, makeTask })`);

const SEED = 0;
const STEPS = 400;
const [LR, TOLERANCE] = [0.005, 1e-3];

const shipped = {};
for (const name of Object.keys(TASKS)) {
  for (const kind of MODELS) {
    const run = new Run(kind, makeTask(name), SEED);
    while (run.steps < STEPS && !run.failed) run.train(TOLERANCE, LR);
    const weights = Buffer.from(Float32Array.from(run.p).buffer).toString("base64");
    const curve = run.curve.filter((_, i) => i % 8 === 0).map(([step, loss]) => [step, Number(loss.toPrecision(3))]);
    shipped[`${name}/${kind}`] = { steps: run.steps, curve, weights };
    console.log(name, kind, run.curve.at(-1)[1].toPrecision(3));
  }
}
const lines = Object.entries(shipped).map(([name, value]) => `${JSON.stringify(name)}: ${JSON.stringify(value)}`);
writeFileSync(new URL("pretrained.json", folder), `{\n${lines.join(",\n")}\n}\n`);
