"""The source of the site: pages from several folders of the repository, in one tree, with links that fit there."""

import importlib
import os
import re
import shutil
from pathlib import Path

import api
import speed

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCE = ROOT / "out" / "docs-source"
EXTRA = ROOT / "out" / "docs-extra"  # copied as it is
DOCTREES = ROOT / "out" / "docs-doctrees"
OUTPUT = ROOT / "out" / "docs"
ELSEWHERE = {  # pages that are kept next to what they describe
    "benchmarks/README.md": "benchmarks.md",
    "lab/README.md": "experiments/lab.md",
    "lab/pages/README.md": "experiments/index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
ALIASES = {"README.md": "start.md", "examples": "gallery/index.rst"}  # where links to these lead
PICTURES = (".png", ".jpg", ".svg", ".html")
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
TITLE = re.compile(r'^r?"""(\S[^\n]*)\n(=+)\n')


def stage_pages() -> None:
    """Write the tree; files that did not change stay, so that a second build is fast."""
    written, copied = texts(), pictures()
    _remove_others({*written, *copied})
    for path, text in written.items():
        _write(SOURCE / path, text)
    for path, source in copied.items():
        (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / source, SOURCE / path)


def texts() -> dict[str, str]:
    """The text of each page by its path in the site."""
    written = {path: adapt(ROOT / source, path) for source, path in pages().items()}
    for path in (path for path in written if path.startswith("pretrained/")):  # linked, but not in the contents
        front, _, rest = written[path].removeprefix("---\n").rpartition("\n---\n")
        written[path] = "\n".join(["---", *filter(None, [front]), "orphan: true", "---", rest])
    listed = "\n".join(sorted(path.stem for path in (ROOT / "lab/pages").glob("*.md") if path.name != "README.md"))
    written["experiments/index.md"] += f"\n```{{toctree}}\n:hidden:\n\nlab\n{listed}\n```\n"
    reference = {f"api/{path}": text for path, text in api.pages().items()}
    included = {"speed-table.md": speed.table(ROOT / "results"), "explorer-link.md": stage_explorer()}
    return {**written, **reference, **included}


def _remove_others(kept: set[str]) -> None:
    """Remove what earlier builds left behind."""
    if {path.name for path in (SOURCE / "gallery").glob("*.py")} - {path.name for path in gallery_scripts()}:
        shutil.rmtree(SOURCE / "gallery")  # a script was renamed or removed
    for path in (path for path in SOURCE.rglob("*") if path.is_file()):
        name = path.relative_to(SOURCE).as_posix()
        if name not in kept and not name.startswith("gallery/"):
            path.unlink()


def stage_explorer() -> str:
    """Write the explorer, which the lab makes, next to the pages; return the text that links to it."""
    shutil.rmtree(EXTRA, ignore_errors=True)
    EXTRA.mkdir(parents=True)
    try:
        explorer = importlib.import_module("ncode_lab.explorer")
    except ImportError:
        return "This site was built without the lab, which makes the page.\n"
    explorer.write_explorer(EXTRA / "explorer-app.html")
    return '<p><a class="button" href="explorer-app.html">Open the explorer</a></p>\n'


def pages() -> dict[str, str]:
    """The path in the site of each Markdown page, by its path in the repository."""
    own = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / "docs").rglob("*.md"))}
    lab = sorted((ROOT / "lab/pages").glob("*.md"))
    cards = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "pretrained").rglob("README.md"))]
    return {
        **{source: source.replace("README.md", "index.md") for source in cards},
        **{source: source.removeprefix("docs/") for source in own},
        **{path.relative_to(ROOT).as_posix(): f"experiments/{path.name}" for path in lab},
        **ELSEWHERE,
    }


def pictures() -> dict[str, str]:
    """The path in the repository of each picture, by its path in the site."""
    own = [path for path in (ROOT / "docs").rglob("*") if path.suffix in PICTURES and HERE not in path.parents]
    lab = (ROOT / "lab/pages/assets").iterdir()
    return {
        **{path.relative_to(ROOT / "docs").as_posix(): path.relative_to(ROOT).as_posix() for path in own},
        **{f"experiments/assets/{path.name}": path.relative_to(ROOT).as_posix() for path in lab},
    }


def gallery_scripts() -> list[Path]:
    """The scripts in examples/ whose docstring begins with a title, underlined by ===."""
    scripts = sorted((ROOT / "examples").glob("*.py"))
    return [path for path in scripts if TITLE.match(path.read_text(encoding="utf-8"))]


def adapt(source: Path, path: str) -> str:
    """The text of a page, with each relative link as it must be where the page is staged."""
    here, known = os.path.dirname(path), {**pages(), **ALIASES, **{old: new for new, old in pictures().items()}}

    def move(link: re.Match[str]) -> str:
        target, anchor = link[2], link[3] or ""
        found = (source.parent / target).resolve()
        if "://" in target or target.startswith("mailto:") or not found.is_relative_to(ROOT):
            return link[0]
        name = found.relative_to(ROOT).as_posix()
        if name in ALIASES:
            anchor = ""
        if name in known:
            return f"{link[1]}{os.path.relpath(known[name], here)}{anchor}{link[4]}"
        if found in gallery_scripts():
            return f"{link[1]}{os.path.relpath(f'gallery/{found.stem}.rst', here)}{link[4]}"
        if found.is_file():  # offered for download
            return f"{link[1]}{os.path.relpath(found, (SOURCE / path).parent)}{link[4]}"
        return link[0]

    return LINK.sub(move, source.read_text(encoding="utf-8"))


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
