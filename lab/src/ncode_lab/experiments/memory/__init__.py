"""Remembering bit patterns within an episode (section 4.3, figure 6, and figure A.3 of the paper)."""
