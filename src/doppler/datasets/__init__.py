"""Problems to train a policy on, and others, of families it has not seen, to measure it by."""

from doppler.datasets.draw import (
    ALL,
    MAX_VERTICES,
    SPLITS,
    DrawnProblem,
    draw_problem,
    make_problem,
    problems,
)
from doppler.datasets.families import FAMILIES, Family
from doppler.datasets.machines import MACHINES, MachineFamily
from doppler.datasets.sketch import RATIOS, communication_ratio

__all__ = [
    "ALL",
    "FAMILIES",
    "MACHINES",
    "MAX_VERTICES",
    "RATIOS",
    "SPLITS",
    "DrawnProblem",
    "Family",
    "MachineFamily",
    "communication_ratio",
    "draw_problem",
    "make_problem",
    "problems",
]
