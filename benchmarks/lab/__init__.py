"""Benchmarks of the lab: run as `python -m benchmarks.lab.NAME`."""
