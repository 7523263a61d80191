"""Save the pictures of the gallery's scripts, without a display, and print the CPU time that each takes.

    python examples/save_pictures.py                              # all of them, as out/NAME.png
    python examples/save_pictures.py reflection cnf --out docs    # some

A script belongs to the gallery if its docstring begins with a title underlined by `===`.
"""

import argparse
import ast
import runpy
import time
from pathlib import Path

import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent


def gallery() -> list[str]:
    """The names of the gallery's scripts."""
    docs = {path.stem: ast.get_docstring(ast.parse(path.read_text("utf-8"))) for path in FOLDER.glob("*.py")}
    return sorted(name for name, doc in docs.items() if doc and "\n===" in doc)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts of the gallery; default: all of them")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the pictures")
    args = parser.parse_args()
    if unknown := set(args.names) - set(gallery()):
        parser.error(f"not in the gallery: {', '.join(sorted(unknown))}; there are {', '.join(gallery())}")
    args.out.mkdir(parents=True, exist_ok=True)
    plt.switch_backend("agg")
    for name in args.names or gallery():
        print(f"\n{name}")
        start, plt.show = time.process_time(), lambda path=args.out / f"{name}.png": plt.savefig(path, dpi=100)
        with plt.rc_context():
            runpy.run_path(str(FOLDER / f"{name}.py"))
        plt.close("all")
        print(f"{name}: {time.process_time() - start:.1f} s")


if __name__ == "__main__":
    main()
