"""The explorer's solver, gradients and scripts, in a real browser, against `ncode.solve`."""

import json

import pytest
import torch
from ncode_lab.explorer import render_explorer
from torch import nn
from torch.testing import assert_close

import ncode

from ..browser import needs_browser, probe

pytestmark = [needs_browser, pytest.mark.slow]

MODELS = ("node", "anode", "open-loop", "closed-loop")
TOLERANCES = (1e-2, 1e-4, 1e-8)
TIMES = (0.0, 0.21, 0.5, 0.98, 1.0)

# A model of the page with given weights, on given points.
SOLVE = """
return CASES.map(({kind, x, y, p, tolerance, times}) => {
  const model = new Model(kind, x[0].length, typeof y[0] === "number");
  const options = {rtol: tolerance, atol: tolerance};
  const {loss, gradient, solutions} = batchLoss(model, Float64Array.from(p), {x, y}, options);
  const dense = x.map((point) => solve(model, model.begin(point), {...options, keep: "dense"}).steps);
  const [ends, steps, rejected, nfe] =
    [s => [...s.z], s => s.accepted, s => s.rejected, s => s.nfe].map((of) => solutions.map(of));
  const between = dense.map((steps) => times.map((t) => [...interpolate(steps, t)]));
  return {loss, gradient: [...gradient], ends, steps, rejected, nfe, between};
});"""


@pytest.fixture(autouse=True)
def double_precision():
    before = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before[0])
    torch.set_num_threads(before[1])


def build(kind, dim, classify):
    """The page's model, with the library: the block, and all that is trained."""
    trunk = nn.Sequential(nn.Linear(dim, 16), nn.Tanh())
    match kind:
        case "node":
            parts = ncode.dynamics.MLP(dim, hidden=(24, 24)), ncode.Static()
        case "anode":
            parts = (
                ncode.dynamics.Augmented(ncode.dynamics.MLP(dim + 1, hidden=(24, 24)), zeros=1),
                ncode.Static(),
            )
        case "open-loop":
            parts = ncode.dynamics.MLP(dim, hidden=8), ncode.OpenLoop(trunk, scale=1.0)
        case _:
            feedback = ncode.control.Feedback(trunk, scale=1.0)
            parts = ncode.dynamics.MLP(dim, hidden=8), ncode.ClosedLoop(feedback)
    block = ncode.NCODE(*parts)
    return block, nn.Sequential(block, nn.Linear(dim + (kind == "anode"), 1)) if classify else block


def cases():
    torch.manual_seed(0)
    for kind in MODELS:
        for dim, classify in ((1, False), (2, False), (2, True)):
            x = torch.rand(7, dim) * 3 - 1.5
            y = (x[:, 0] > 0).double() if classify else -x
            _, model = build(kind, dim, classify)
            # Three times the usual size: fields in which steps are rejected.
            p = 3 * nn.utils.parameters_to_vector(model.parameters()).detach()
            for tolerance in TOLERANCES:
                given = {"x": x.tolist(), "y": y.tolist(), "p": p.tolist()}
                yield {"kind": kind, "tolerance": tolerance, "times": TIMES, **given}


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    given = list(cases())
    found = probe(render_explorer(), f"const CASES = {json.dumps(given)};{SOLVE}", tmp_path_factory.mktemp("numbers"))
    return list(zip(given, found, strict=True))


def solve_by_library(case):
    x, y, p = (torch.tensor(case[name]) for name in ("x", "y", "p"))
    classify = y.dim() == 1
    block, model = build(case["kind"], x.shape[1], classify)
    nn.utils.vector_to_parameters(p, model.parameters())
    save_at = torch.tensor(TIMES)
    sol = block.solve(x, save_at=save_at, rtol=case["tolerance"], atol=case["tolerance"])
    if classify:
        loss = nn.functional.binary_cross_entropy_with_logits(model[1](sol.x)[:, 0], y)
    else:
        loss = (sol.x[:, : x.shape[1]] - y).square().mean()
    return sol, loss, torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))])


def test_end_states_and_steps_are_those_of_the_library(solved):
    rejected = 0
    for case, found in solved:
        sol, *_ = solve_by_library(case)
        ends = torch.tensor(found["ends"])
        assert_close(ends[:, : sol.x.shape[1]], sol.x, rtol=1e-9, atol=1e-9)
        if case["kind"] == "closed-loop":
            theta = torch.cat([value.flatten(1) for value in sol.theta.values()], 1)
            assert_close(ends[:, sol.x.shape[1] :], theta, rtol=1e-9, atol=1e-9)
        for name in ("steps", "rejected", "nfe"):
            assert found[name] == getattr(sol.stats, name).tolist(), (case["kind"], case["tolerance"], name)
        rejected += sum(found["rejected"])
    assert rejected > 100  # or the rule for rejected steps was not tested


def test_states_between_steps_are_those_of_the_library(solved):
    for case, found in solved:
        sol, *_ = solve_by_library(case)
        assert_close(torch.tensor(found["between"])[..., : sol.x.shape[1]], sol.xs, rtol=1e-9, atol=1e-9)


def test_losses_and_gradients_are_those_of_the_library(solved):
    for case, found in solved:
        _, loss, gradient = solve_by_library(case)
        assert_close(torch.tensor(found["loss"]), loss.detach(), rtol=1e-10, atol=1e-10)
        assert_close(torch.tensor(found["gradient"]), gradient, rtol=1e-8, atol=1e-9 * float(gradient.abs().max()))


# Four runs that are trained for some steps, and the scripts that the page prints for them.
PRINT = """
const kinds = [["line", "node"], ["mirror", "anode"], ["annuli", "open-loop"], ["own", "closed-loop"]];
return kinds.flatMap(([name, kind]) => [false, true].map((shipped) => {
  state = readAddress(`#task=${name}&model=${kind}`);
  const run = new Run(kind, makeTask(name, name === "own" && !shipped ? readPoints("1,1,1;0,0,0;-1,1,0") : null), 5);
  if (shipped) run.start(0, shippedWeights(kind, 0));
  for (const lr of [0.01, 0.01, 0.02]) run.train(1e-3, lr);
  const sample = SAMPLES[name];
  const {loss} = followAll(run, 1e-4);
  const {z, accepted, rejected} = followSample(run, sample, 1e-4);
  const end = [...z.subarray(0, run.model.state)];
  return {script: pythonScript(run, sample, 1e-4), loss, end, accepted, rejected};
}));"""


def test_the_printed_script_prints_the_numbers_of_the_page(tmp_path, capsys):
    for found in probe(render_explorer(), PRINT, tmp_path):
        exec(compile(found["script"], "script.py", "exec"), {})
        lines = capsys.readouterr().out.splitlines()
        assert float(lines[0].removeprefix("loss ")) == pytest.approx(found["loss"], rel=1e-8)
        assert json.loads(lines[1].removeprefix("the sample ends at ")) == pytest.approx(found["end"], abs=2e-9)
        assert lines[2] == f"steps accepted {found['accepted']}, rejected {found['rejected']}"
        assert max(map(len, found["script"].splitlines())) <= 120
