"""The reflection x -> -x, which no NODE can learn (section 4.1 and figure 4 of the paper)."""
