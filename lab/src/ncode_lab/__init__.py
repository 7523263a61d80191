"""The experiments of "Go with the flow: Adaptive Control for Neural ODEs", run with the library `ncode`."""

__version__ = "0.1.0"
