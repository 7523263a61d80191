"""Configuration of Sphinx; `__main__.py` starts it. Nothing here needs a network."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import stage  # noqa: E402

import ncode  # noqa: E402

project = "ncode"
author = "The N-CODE developers"
copyright = author
release = ncode.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_gallery.gen_gallery", "docstrings"]
language = "en"
exclude_patterns = ["speed-table.md", "explorer-link.md"]  # parts of other pages
smartquotes_action = "De"  # dashes and ellipses; quotes in docstrings belong to code

html_theme = "furo"
html_title = "ncode"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = [str(stage.EXTRA)]
html_copy_source = False
html_show_sphinx = False
pygments_style, pygments_dark_style = "friendly", "github-dark"
# The default fonts of the reader's system: none is downloaded.
html_theme_options = {"navigation_with_keys": True}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]  # functions in the gallery's settings cannot be pickled

autodoc_typehints = "none"
autodoc_inherit_docstrings = False
autodoc_class_signature = "mixed"
add_module_names = False
toc_object_entries = False

_others = {path.name for path in (stage.ROOT / "examples").glob("*.py")} - {it.name for it in stage.gallery_scripts()}
sphinx_gallery_conf = {
    "examples_dirs": [str(stage.ROOT / "examples")],
    "gallery_dirs": ["gallery"],
    "filename_pattern": "",  # run every script
    "ignore_pattern": rf"(^|[/\\])({'|'.join(map(re.escape, sorted(_others)))})$",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "thumbnail_size": (480, 330),
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "parallel": 2,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib", "gallery.reset"),
    "reset_modules_order": "before",
    "inspect_global_variables": False,
    "copyfile_regex": "",
}
