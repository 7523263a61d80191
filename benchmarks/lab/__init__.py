"""Benchmarks of what only ncode_lab has."""
