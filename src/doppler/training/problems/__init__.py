"""Problems to train a policy on, and others, of families it has not seen, to measure it by."""

from doppler.training.problems.draw import (
    ALL,
    MAX_VERTICES,
    SPLITS,
    Problem,
    draw_problem,
    make_problem,
    problems,
)
from doppler.training.problems.families import FAMILIES, Family
from doppler.training.problems.machines import MACHINES, Machine
from doppler.training.problems.sketch import RATIOS, communication_ratio

__all__ = [
    "ALL",
    "FAMILIES",
    "MACHINES",
    "MAX_VERTICES",
    "RATIOS",
    "SPLITS",
    "Family",
    "Machine",
    "Problem",
    "communication_ratio",
    "draw_problem",
    "make_problem",
    "problems",
]
