"""The dynamic device features (App. E): their names, sets and scaling."""

from math import log1p
from typing import Any

import numpy as np
import numpy.typing as npt

from doppler.base.arrays import BoolArray, FloatArray

# Of device d for the vertex v that was selected. Times and sums of seconds are over the scale of
# the instance, then squeezed by `squeeze`; "planned" means by the estimate of `Episode`, which also
# says what is in memory.
DEVICE_FEATURES = (
    # The five of App. E:
    "device_work",  # exec seconds of all that is on d
    "input_work",  # exec seconds of v's producers on d
    "input_start",  # earliest planned begin of v's producers on d; 0 if there are none
    "input_end",  # latest planned end of v's producers on d; 0 if there are none
    "earliest_start",  # when v could begin on d
    # What those cannot tell apart: where v's siblings are, whose tensors will meet v's at the same
    # vertex, at once or after a chain of vertices that read nothing else.
    "sibling_bytes",  # mean transfer seconds of v's siblings' outputs that are on d
    "sibling_share",  # share of v's siblings that are on d
    "sibling_distance",  # mean seconds to move v's output from d to where its siblings are
    # What a choice costs, and how d compares with the best device.
    "exec",  # seconds of v on d
    "input_transfer",  # seconds to move to d those inputs of v that are elsewhere
    "extra_work",  # device_work over the least of any device
    "extra_start",  # earliest_start over the least of any device
    "extra_end",  # planned end of v on d over the least of any device
    # Memory, 0 where it has no limit.
    "memory_share",  # bytes on d while v runs there over those that d can hold; MOST_SHARE at most
    "overfull",  # the same if it is more than 1, else 0
)
# Of every vertex as an episode goes on, for message passing at every step (App. G.3).
VERTEX_STATE = (
    "placed",  # 1 once it has a device
    "candidate",  # 1 while it can be selected
    "planned_end",  # seconds, scaled as above; 0 until it is placed
)
FEATURE_SETS = {"paper": DEVICE_FEATURES[:5], "default": DEVICE_FEATURES}
FEATURE_VERSION = 3  # of these and of VERTEX_FEATURES: a policy reads no others than it learned on
NUM_FEATURES = len(DEVICE_FEATURES)
SHARE = DEVICE_FEATURES.index("sibling_share")
EXTRA_START = DEVICE_FEATURES.index("extra_start")
MEMORY_SHARE = DEVICE_FEATURES.index("memory_share")
OVERFULL = DEVICE_FEATURES.index("overfull")
NOT_SECONDS = [SHARE, MEMORY_SHARE, OVERFULL]
MOST_SHARE = 2.0  # of memory; beyond it matters no more by how much
CROWDED = 100.0  # what the logit of a device loses by `overfull`: more than PLC could make up for
SQUEEZE = 100.0  # shares of the scale below a hundredth stay linear
SQUEEZED_ONE = log1p(SQUEEZE)
TIE = 1e-5  # difference of logits up to which devices cannot be told apart


def squeeze(values: FloatArray) -> FloatArray:
    """Values of any size as numbers near one, small differences between small ones kept."""
    return np.log1p(SQUEEZE * values) / SQUEEZED_ONE


def early(features: npt.NDArray[np.floating[Any]]) -> BoolArray:
    """(…, D) where the critical-path rule would place, from (…, D, 15) device features.

    That is where the vertex can begin first, of the devices with room for it; if there are none, of
    those that it overfills the least.
    """
    overfull = features[..., OVERFULL]
    least = overfull <= overfull.min(axis=-1, keepdims=True)
    extra = np.where(least, features[..., EXTRA_START], np.inf)
    first: BoolArray = extra <= extra.min(axis=-1, keepdims=True)
    return first
