"""`python -m ncode_lab.cli` is `ncode`."""

import sys

from .main import main

sys.exit(main())
