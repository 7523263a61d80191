"""Examples say `ncode.solve(...)`: a file of the room `solve`, imported by pytest first, would put the room there."""

import ncode  # noqa: F401
