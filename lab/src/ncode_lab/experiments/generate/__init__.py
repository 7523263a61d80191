"""Sampling from densities of codes (section 4.5 and appendix C.6 of the paper)."""
