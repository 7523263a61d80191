"""Name each file of results/choices by all settings that these files differ in.

    python lab/scripts/relabel_choices.py lab/results/choices

Their labels named what differed from the preset of their commit, so that files with the same name had different
settings. Values that stand for a choice (0, -1, "auto") are replaced by what they stood for at that commit. Only the
label and the file name change, and running the script again changes nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ncode_lab.training import Trial

FORMER_BETA = {"3eaf1e5": 0.08}  # of the VAE by commit; 0.04 since


def label(result: dict[str, Any]) -> str:
    """The data set, and the settings of one choice on CIFAR-10."""
    model, settings = result["model"], result["settings"]
    assert settings["dataset"] == "cifar10", settings["dataset"]
    named: dict[str, Any] = {}
    if model == "auton-code":
        named["nonzeros"] = settings["nonzeros"] or 2
        named["norm"] = "sphere" if settings["norm"] == "auto" else settings["norm"]
    if model == "vae":
        named["beta"] = settings["beta"] or FORMER_BETA.get(result["commit"][:7], 0.04)
    else:
        named["code noise"] = 0.25 if settings["code_noise"] == -1 else settings["code_noise"]
    named["texture"] = settings["texture"]
    named["shift"] = 1 if settings["shift"] == -1 else settings["shift"]
    named["still"] = settings["still"] if named["shift"] else 0
    named |= {name: settings[name] for name in ("epochs", "validate")}
    words = [f"{name} {value if isinstance(value, str) else f'{value:g}'}" for name, value in named.items()]
    return ", ".join(["cifar10", *words])


def relabel(path: Path) -> bool:
    """Relabel and rename one file. Returns whether anything has changed."""
    text = path.read_text(encoding="utf-8")
    result = json.loads(text)
    new = label(result)
    text = text.replace(f'"dataset": "{result["dataset"]}"', f'"dataset": "{new}"')
    assert json.loads(text) == {**result, "dataset": new}, f"{path} is not written as expected: nothing was changed"
    trial = Trial(result["model"], new, result["seed"]).name
    place = path.with_name(f"{result['preset']}-{trial}.json")
    if place == path and result["dataset"] == new:
        return False
    assert place == path or not place.exists(), f"{place} exists already"
    path.unlink()
    place.write_text(text, encoding="utf-8")
    return True


def main() -> None:
    """Relabel all files below the given folder."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "lab/results/choices")
    paths = sorted(folder.glob("*/*.json"))
    print(f"{sum(map(relabel, paths))} of {len(paths)} files relabelled")


if __name__ == "__main__":
    main()
