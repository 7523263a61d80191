"""Concentric annuli, which no flow of the plane separates (section 4.1, figures 1, 5 and A.1 of the paper)."""
