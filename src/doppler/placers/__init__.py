"""Placers: everything that makes assignments, and the bounds they are measured by."""

from doppler.placers.base import Placer
from doppler.placers.bounds import LowerBounds, gap, lower_bounds
from doppler.placers.registry import make_placer, place, placer_names

__all__ = [
    "LowerBounds",
    "Placer",
    "gap",
    "lower_bounds",
    "make_placer",
    "place",
    "placer_names",
]
