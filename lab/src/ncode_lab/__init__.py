"""The experiments of "Go with the flow: Adaptive Control for Neural ODEs", run with the library `ncode`."""
