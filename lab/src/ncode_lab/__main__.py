"""`python -m ncode_lab` is `ncode`."""

import sys

from .cli import main

sys.exit(main())
