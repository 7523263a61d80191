"""Helpers of all figures: sizes and colours, grids of images, training curves."""
