import subprocess
import sys

# Runs in a fresh interpreter: prints every package that `import ncode` brings in on top of torch and the
# standard library.
NEW_PACKAGES = """
import sys
import torch
before = set(sys.modules)
import ncode
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - set(sys.stdlib_module_names) - {"torch", "ncode"}))
"""


def test_import_ncode_needs_torch_alone():
    run = subprocess.run([sys.executable, "-c", NEW_PACKAGES], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
