"""The Van der Pol oscillator as a line with a control (figure 3 of the paper)."""
