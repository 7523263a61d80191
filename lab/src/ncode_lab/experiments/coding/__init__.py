"""What the experiments with autoencoders share: settings, models, training, codes, scores and labels."""
