"""List schedulers, the paper's critical-path and enumerative heuristics, and trivial placers."""
