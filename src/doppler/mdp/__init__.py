"""The decision process: which vertex next, and on which device (Sec. 4.1)."""

from doppler.mdp.episode import Episode
from doppler.mdp.features import DEVICE_FEATURES, FEATURE_SETS
from doppler.mdp.instance import VERTEX_FEATURES, Instance, make_instance

__all__ = [
    "DEVICE_FEATURES",
    "FEATURE_SETS",
    "VERTEX_FEATURES",
    "Episode",
    "Instance",
    "make_instance",
]
