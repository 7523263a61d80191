"""`python docs/_site`: build the documentation into out/docs, without a network, and check its links.

Pages are written in docs/ and, where they belong to something else, next to it (lab/pages, benchmarks/README.md).
`stage.py` collects them in out/docs-source, `api.py` adds a page for each public name, and Sphinx does the rest.
"""

import shutil
import sys
import time

import links
import stage
from sphinx.cmd.build import main as sphinx_build


def main() -> int:
    start = time.perf_counter()
    stage.stage_pages()
    shutil.rmtree(stage.OUTPUT, ignore_errors=True)  # pages that are no longer there
    folders = ["-c", str(stage.HERE), "-d", str(stage.DOCTREES), str(stage.SOURCE), str(stage.OUTPUT)]
    strict = ["--fail-on-warning", "--keep-going", "--nitpicky", "--quiet"]
    failed = sphinx_build([*strict, *folders, *sys.argv[1:]])
    if failed:
        return failed
    problems = links.check_site(stage.OUTPUT)
    print(*problems, sep="\n", file=sys.stderr)
    if not problems:
        pages = sum(1 for _ in stage.OUTPUT.rglob("*.html"))
        print(f"{pages} pages in {time.perf_counter() - start:.0f} s: {stage.OUTPUT / 'index.html'}")
    return bool(problems)


sys.exit(main())
