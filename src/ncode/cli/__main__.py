"""`python -m ncode.cli` is `ncode`."""

import sys

from .main import main

sys.exit(main())
