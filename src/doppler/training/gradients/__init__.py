"""Losses of episodes and their gradients, and what REINFORCE subtracts."""
