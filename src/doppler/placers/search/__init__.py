"""Search on the simulator: annealing, local search, a genetic algorithm, and the improver."""
