"""Measures ncode beside torchdiffeq, torchode and diffrax: `python -m benchmarks --help`."""
