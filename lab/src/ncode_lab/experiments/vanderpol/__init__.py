"""The Van der Pol oscillator as a line with a control (figure 2 of the paper)."""
