"""Checks of the built site: every local link and anchor exists, and nothing is loaded from a network."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data")}
LINKED = {("a", "href"), ("area", "href")}
NOT_LOADED = {"canonical", "next", "prev", "search", "index", "author"}  # relations that a browser does not fetch


class Page(HTMLParser):
    """The anchors of a page, and what it links to or loads."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        for name, value in values.items():
            if (tag, name) in LINKED:
                self.links.append(value)
            elif (tag, name) in LOADED and values.get("rel") not in NOT_LOADED:
                self.loads.append(value)


def check_site(folder: Path) -> list[str]:
    """Return one sentence per broken link or foreign resource; none if all is well."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    return [
        f"{path.relative_to(folder.resolve())}: {problem}" for path in pages for problem in _check_page(path, pages)
    ]


def _check_page(path: Path, pages: dict[Path, Page]) -> Iterator[str]:
    page = pages[path]
    for target in page.loads:
        if urlsplit(target).scheme in ("http", "https") or target.startswith("//"):
            yield f"loads {target} from a network"
    for target in (*page.links, *page.loads):
        url = urlsplit(target)
        if url.scheme or url.netloc:
            continue
        found = (path.parent / unquote(url.path)).resolve() if url.path else path
        found = found / "index.html" if found.is_dir() else found
        if not found.is_file():
            yield f"links to {target}, which does not exist"
        elif url.fragment and found in pages and unquote(url.fragment) not in pages[found].anchors:
            yield f"links to {target}, but that page has no such anchor"
