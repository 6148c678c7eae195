"""Placers: everything that makes assignments, and the bounds they are measured by."""

from doppler.placers.base import Placer, searches
from doppler.placers.bounds.lower import (
    LowerBounds,
    bounds_of,
    gap,
    is_optimal,
    lower_bounds,
    proven_bound_s,
)
from doppler.placers.comparison import ComparisonRow, compare
from doppler.placers.registry import make_placer, place, placer_names
from doppler.placers.solution import Solution, solve

__all__ = [
    "ComparisonRow",
    "LowerBounds",
    "Placer",
    "Solution",
    "bounds_of",
    "compare",
    "gap",
    "is_optimal",
    "lower_bounds",
    "make_placer",
    "place",
    "placer_names",
    "proven_bound_s",
    "searches",
    "solve",
]
