"""Stands in for the lab while the library's tests run, to show that these do not need it.

`make test-library` puts this folder first on PYTHONPATH, so that the tests and all processes that they start find this
module in place of the installed one.
"""

raise ModuleNotFoundError("the library's tests must pass without the lab", name="ncode_lab")
