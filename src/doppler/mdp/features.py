"""The dynamic device features (App. E): their names, sets and scaling."""

from math import log, log1p
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
    # How far the graph is spread, which one choice after the other decides.
    "unused",  # 1 if nothing is on d
    "used_share",  # share of the devices that something is on
    "placed_share",  # share of all work that is placed
    # The host, which starts tasks one after the other.
    "host_time",  # seconds that it takes to start the transfers of v's inputs to d
    "host_load",  # seconds that it took to start all that is planned, over the end of that
    # The same for every vertex and device: see `outlook`.
    "num_devices",
    "communication",
    "parallelism",
    "dispatch",
    # The guide, an assignment to compare with: what a choice means for vertices that come later.
    # All are 0 where there is none.
    "guided",  # 1 if the guide has v on d
    "guide_output",  # seconds to move v's outputs from d to where the guide has their readers
    "guide_work",  # exec seconds on d: of what is there, and of what the guide has there later
    "extra_guide_work",  # the same over the least of any device
    "guide_late",  # planned end of v on d less the guide's in simulation; may be negative
    "guide_slack",  # how much later v could end in that without anything else ending later
)
# Of every vertex as an episode goes on, for message passing at every step (App. G.3).
VERTEX_STATE = (
    "placed",  # 1 once it has a device
    "candidate",  # 1 while it can be selected
    "planned_end",  # seconds, scaled as above; 0 until it is placed
)
FEATURE_SETS = {"paper": DEVICE_FEATURES[:5], "default": DEVICE_FEATURES}
FEATURE_VERSION = 5  # of these and of VERTEX_FEATURES: a policy reads no others than it learned on
NUM_FEATURES = len(DEVICE_FEATURES)
NUM_STATIC = 4  # of the outlook, which do not change
SHARE = DEVICE_FEATURES.index("sibling_share")
EARLIEST = DEVICE_FEATURES.index("earliest_start")
EXTRA_END = DEVICE_FEATURES.index("extra_end")
EXTRA_START = DEVICE_FEATURES.index("extra_start")
MEMORY_SHARE = DEVICE_FEATURES.index("memory_share")
OVERFULL = DEVICE_FEATURES.index("overfull")
UNUSED = DEVICE_FEATURES.index("unused")
HOST_TIME = DEVICE_FEATURES.index("host_time")
GUIDED = DEVICE_FEATURES.index("guided")
GUIDE_OUTPUT = DEVICE_FEATURES.index("guide_output")
NOT_SECONDS = [SHARE, *(i for i in range(MEMORY_SHARE, GUIDE_OUTPUT) if i != HOST_TIME)]
MOST_SHARE = 2.0  # of memory; beyond it matters no more by how much
CROWDED = 100.0  # what the logit of a device loses by `overfull`: more than PLC could make up for
SQUEEZE = 100.0  # shares of the scale below a hundredth stay linear
SQUEEZED_ONE = log1p(SQUEEZE)
# By which devices are chosen to be scored for a vertex, in turn: those with the least of a feature,
# of those in MOST_OF the most. Ties go to the one that ends first, and room goes before all else.
SCORED_BY = tuple(
    DEVICE_FEATURES.index(name)
    for name in (
        *("guided", "extra_end", "input_transfer", "extra_start", "sibling_distance", "extra_end"),
        *("guide_output", "sibling_share", "extra_work", "extra_end", "input_transfer"),
    )
)
MOST_OF = (SHARE, GUIDED)
WEIGHT_OF_END, WEIGHT_OF_OVERFULL = 1e-3, 1e3
SAME = 1e-9  # difference up to which two devices are as good
MANY_DEVICES, MANY_TIMES = 64.0, 100.0  # what `outlook` calls 1; less and more are possible
TIE = 1e-5  # difference of logits up to which devices cannot be told apart


def squeeze(values: FloatArray) -> FloatArray:
    """Values of any size as numbers near one, small differences between small ones kept."""
    squeezed: FloatArray = np.sign(values) * np.log1p(SQUEEZE * np.abs(values)) / SQUEEZED_ONE
    return squeezed


def outlook(
    num_devices: int, work_s: float, moves_s: float, path_s: float, dispatch_s: float
) -> npt.NDArray[np.float32]:
    """(4,) what there is to gain from many devices, on scales of logarithms.

    That is their number; how long it takes to move every tensor once, over all work; all work over
    the longest path of it; and how long the host takes to start all vertices, over the mean work of
    a device. From 1 to 64 devices, from a hundredth to 100 times and from 1 to 64 times the work on
    the path, the first three go from 0 to 1; the last is squeezed, as other seconds are.
    """
    started = min(dispatch_s * num_devices / work_s, 1e6) if work_s > 0.0 else 0.0
    ratio = min(max(moves_s / work_s if work_s > 0.0 else MANY_TIMES, 1 / MANY_TIMES), 1e6)
    width = min(max(work_s / path_s if path_s > 0.0 else 1.0, 1.0), 1e6)
    return np.array(
        [
            log(num_devices) / log(MANY_DEVICES),
            (1.0 + log(ratio) / log(MANY_TIMES)) / 2,
            log(width) / log(MANY_DEVICES),
            log1p(SQUEEZE * started) / SQUEEZED_ONE,
        ],
        np.float32,
    )


def early(features: npt.NDArray[np.floating[Any]]) -> BoolArray:
    """(…, D) where the critical-path rule would place, from (…, D, 30) device features.

    That is where the vertex can begin first, of the devices with room for it; if there are none, of
    those that it overfills the least.
    """
    overfull = features[..., OVERFULL]
    least = overfull <= overfull.min(axis=-1, keepdims=True)
    extra = np.where(least, features[..., EXTRA_START], np.inf)
    first: BoolArray = extra <= extra.min(axis=-1, keepdims=True)
    return first
