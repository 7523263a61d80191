"""Gradients of a solve: "discrete", "adjoint" and "autograd"."""
