"""The dynamic device features (App. E): their names, sets and scaling."""

from math import log1p

import numpy as np

from doppler.arrays import FloatArray

# Of device d for the vertex v that was selected. Times and sums of seconds are over the scale of
# the instance, then squeezed by `squeeze`; "planned" means by the estimate of `Episode`.
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
)
# Of every vertex as an episode goes on, for message passing at every step (App. G.3).
VERTEX_STATE = (
    "placed",  # 1 once it has a device
    "candidate",  # 1 while it can be selected
    "planned_end",  # seconds, scaled as above; 0 until it is placed
)
FEATURE_SETS = {"paper": DEVICE_FEATURES[:5], "default": DEVICE_FEATURES}
FEATURE_VERSION = 1  # of these and of VERTEX_FEATURES: a policy reads no others than it learned on
NUM_FEATURES = len(DEVICE_FEATURES)
SHARE = DEVICE_FEATURES.index("sibling_share")  # the one that is not seconds
SQUEEZE = 100.0  # shares of the scale below a hundredth stay linear
SQUEEZED_ONE = log1p(SQUEEZE)
TIE = 1e-5  # difference of logits up to which devices cannot be told apart


def squeeze(values: FloatArray) -> FloatArray:
    """Values of any size as numbers near one, small differences between small ones kept."""
    return np.log1p(SQUEEZE * values) / SQUEEZED_ONE
