"""Training: imitation, then reinforcement on the simulator (Sec. 5)."""
