"""Run folders to report on."""

import json

from matplotlib.figure import Figure
from ncode_lab.training import Result, Trial

COLUMNS = [["error", "error, %", 1, 100.0], {"metric": "nfe", "title": "NFE", "digits": 0, "scale": 1.0}]
ENVIRONMENT = {"device": "CPU", "versions": {"torch": "2.13"}, "commit": "abc", "command": "ncode run annuli --paper"}


def result(model="node", dataset="annuli", seed=0, error=0.25, **changes):
    about = {"experiment": "annuli", "preset": "paper", "settings": {"steps": 5}, "parameters": 354, "seconds": 2.0}
    return Result(
        **{**about, "metrics": {"error": error}, **ENVIRONMENT, **changes}, model=model, dataset=dataset, seed=seed
    )


def record(**changes):
    about = {"experiment": "annuli", "title": "Two annuli", "question": "Can it?", "preset": "paper"}
    about |= {"settings": {"steps": 5}, "options": {"seeds": 2}, "columns": COLUMNS, "paper": [], "figures": []}
    return {**about, **ENVIRONMENT, "started": "2025-06-01", "finished": "2025-06-02", **changes}


def write_run(folder, results, figures=(), **changes):
    """A run folder as the runner leaves it. Figures are (name, caption)."""
    names = []
    for one in results:
        names.append(Trial(one.model, one.dataset, one.seed).name)
        trial = folder / "trials" / names[-1]
        trial.mkdir(parents=True)
        (trial / "result.json").write_text(json.dumps(one.as_json()))
    (folder / "figures").mkdir(parents=True)
    for name, _ in figures:
        draw(folder / "figures", name)
    listed = [{"name": name, "caption": caption} for name, caption in figures]
    about = {"trials": names, "figures": listed, **changes}
    (folder / "run.json").write_text(json.dumps(record(**about)))
    return folder


def draw(folder, name, points=20):
    figure = Figure(figsize=(4, 3))
    figure.subplots().plot(range(points), "o-", label="node")
    figure.legend()
    figure.savefig(folder / f"{name}.svg")
    figure.savefig(folder / f"{name}.png", dpi=150)
