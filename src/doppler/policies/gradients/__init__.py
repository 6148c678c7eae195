"""Log-probabilities and losses of episodes, and their gradients."""
