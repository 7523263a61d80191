"""`python -m ncode_lab.cli` is `ncode`."""

import sys

from . import main

sys.exit(main())
