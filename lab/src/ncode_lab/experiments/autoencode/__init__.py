"""Autoencoding with a controlled latent flow (section 4.4, appendix C.4 and C.5 of the paper)."""
