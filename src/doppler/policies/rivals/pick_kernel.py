"""How compiled episodes of the rivals draw devices."""

from typing import Any

import numpy as np
import numpy.typing as npt

from doppler.base.jit import KERNEL, part

Floats = npt.NDArray[np.float32]

_OPTIONS: Any = {"fastmath": {"contract"}, **KERNEL}
called: Any = part(forceinline=False, **_OPTIONS)


@called
def pick(logits: Floats, draw: Floats, temperature: float, epsilon: float) -> int:
    """The device that is drawn: the best at temperature 0, and some at random.

    `draw` holds three uniform numbers from 0 to 1: to draw a device by the policy, to decide
    whether it is drawn uniformly instead, and to draw that one.
    """
    size = len(logits)
    if draw[1] < epsilon:
        return min(int(draw[2] * size), size - 1)
    best = 0
    for d in range(size):
        if logits[d] > logits[best]:
            best = d
    if temperature <= 0:
        return best
    total = 0.0
    for d in range(size):
        total += np.exp((logits[d] - logits[best]) / temperature)
    left = draw[0] * total
    for d in range(size):
        left -= np.exp((logits[d] - logits[best]) / temperature)
        if left < 0:
            return d
    return size - 1
