"""What a source distribution holds."""

from pathlib import Path

from hatchling.builders.sdist import SdistBuilder

import ncode

ROOT = Path(__file__).parents[1]


def test_a_source_distribution_holds_the_library_without_the_lab_results_and_pictures():
    builder = SdistBuilder(str(ROOT))
    files = [Path(file.relative_path) for file in builder.recurse_included_files()]
    assert {file.parts[0] for file in files} >= {"src", "tests", "conftest.py", "examples", "benchmarks"}
    assert not {file.parts[0] for file in files} & {"lab", "results", "out"}
    assert not {file.suffix for file in files} & {".png", ".jpg", ".svg", ".pyc"}
    assert sum((ROOT / file).stat().st_size for file in files) < 3_000_000
    assert builder.metadata.version == ncode.__version__
