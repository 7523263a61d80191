"""Relabel results of the former preset "paper" of classification and the autoencoder experiments as "full".

    python lab/scripts/relabel_results.py lab/results

Until there were both, `--paper` of these experiments was our own recipe; now that is `--full`, and `--paper` is the
paper's. Files written before are recognised by settings that no longer exist, so results of the new `--paper` are left
alone, and running the script again changes nothing. Everything but the preset, the command and the file name stays as
it is, byte for byte.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

# A setting of each experiment that every file written before has, and none written since.
FORMER_SETTINGS = {
    "classification": "tf32",
    "autoencode": "horizon",
    "generate": "horizon",
    "cluster": "horizon",
    "interpolate": "horizon",
}


def relabel(path: Path) -> Path | None:
    """Relabel one file and rename it. Returns the new path, or None if the file is not concerned."""
    text = path.read_text(encoding="utf-8")
    result = json.loads(text)
    if not isinstance(result, dict) or result.get("preset") != "paper":
        return None
    if FORMER_SETTINGS.get(result["experiment"]) not in result["settings"]:
        return None
    text = text.replace('"preset": "paper"', '"preset": "full"')
    text = re.sub(r'("command": "[^"\n]*?)--paper\b', r"\1--full", text)
    changed = {**result, "preset": "full", "command": result["command"].replace("--paper", "--full")}
    assert json.loads(text) == changed, f"{path} is not written as expected: nothing was changed"
    new = path.with_name(re.sub(r"^paper-", "full-", path.name))
    new.write_text(text, encoding="utf-8")
    if new != path:
        path.unlink()
    return new


def main() -> None:
    """Relabel all result files below the given folders."""
    folders = [Path(argument) for argument in sys.argv[1:]] or [Path("lab/results")]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.json"))]
    done = [path for path in paths if relabel(path)]
    print(f"{len(done)} of {len(paths)} files relabelled")


if __name__ == "__main__":
    main()
