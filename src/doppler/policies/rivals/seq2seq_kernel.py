"""Compiled episodes of the sequence placer: float32, on one core, without the GIL.

All episodes take a step together, so that what is read of the weights serves several of them.
What depends on a group or on a device alone was multiplied by the weights before.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.base.arrays import IntArray
from doppler.base.jit import KERNEL, by_reference, njit, part
from doppler.policies.arrays.kernel import multiply
from doppler.policies.rivals.pick_kernel import pick

Floats = npt.NDArray[np.float32]

_OPTIONS: Any = {"fastmath": {"contract"}, **KERNEL}
compiled: Any = njit(cache=True, no_cfunc_wrapper=True, **_OPTIONS)
called: Any = part(forceinline=False, **_OPTIONS)


class DecoderLayers(NamedTuple):
    """The decoder's weights for one sequence of g groups; matrices are (from, to).

    The gates of the LSTM are in torch's order: input, forget, cell, output.
    """

    state: Floats  # (1, H) after the encoder, from which episodes begin
    cell: Floats  # (1, H)
    before: Floats  # (D + 1, 4H) gates: of the device that the group before was given
    here: Floats  # (g, 4H) of the group at hand
    recurrent: Floats  # (H, 4H)
    gates_bias: Floats  # (4H,)
    keys: Floats  # (H, g) what each group answers to a state
    no_bias: Floats  # (max(g, H),) zeros
    values: Floats  # (g, H) what each group adds to the head's first layer
    head: Floats  # (H, H) that layer, of the state
    head_bias: Floats  # (H,)
    out: Floats  # (H, D)
    out_bias: Floats  # (D,)


class DecoderSpace(NamedTuple):
    """What B episodes are computed in."""

    state: Floats  # (B, H)
    cell: Floats  # (B, H)
    gates: Floats  # (B, 4H)
    weights: Floats  # (B, g) attention to the groups
    seen: Floats  # (B, H) the head's first layer: by attention
    own: Floats  # (B, H) and of the state


by_reference(DecoderLayers, DecoderSpace)


def make_space(count: int, steps: int, width: int) -> DecoderSpace:
    """Room for a number of episodes."""
    sizes = (width, width, 4 * width, steps, width, width)
    return DecoderSpace(*(np.empty((count, size), np.float32) for size in sizes))


@compiled
def play(
    decoder: DecoderLayers,
    draws: Floats,
    temperature: float,
    epsilon: float,
    taken: IntArray,
    logits: Floats,
    space: DecoderSpace,
) -> None:
    """Fill in the devices that (B, g) episodes take, and their (g, B, D) logits.

    `draws` are (g, 3, B) uniform numbers from 0 to 1, see `pick`.
    """
    count, steps = taken.shape
    nothing = len(decoder.before) - 1
    for b in range(count):
        for h in range(space.state.shape[1]):
            space.state[b, h] = decoder.state[0, h]
            space.cell[b, h] = decoder.cell[0, h]
    for step in range(steps):
        multiply(space.state, count, decoder.recurrent, decoder.gates_bias, space.gates)
        for b in range(count):
            before = taken[b, step - 1] if step else nothing
            advance(decoder.before[before], decoder.here[step], b, space)
        multiply(space.state, count, decoder.keys, decoder.no_bias, space.weights)
        for b in range(count):
            soften(space.weights[b])
        multiply(space.weights, count, decoder.values, decoder.head_bias, space.seen)
        multiply(space.state, count, decoder.head, decoder.no_bias, space.own)
        for b in range(count):
            for h in range(space.state.shape[1]):
                space.seen[b, h] = np.tanh(space.seen[b, h] + space.own[b, h])
        multiply(space.seen, count, decoder.out, decoder.out_bias, logits[step])
        for b in range(count):
            taken[b, step] = pick(logits[step, b], draws[step, :, b], temperature, epsilon)


@called
def advance(before: Floats, here: Floats, b: int, space: DecoderSpace) -> None:
    """One step of an LSTM: the gates of an episode, so far of its state, become the next state."""
    width = space.state.shape[1]
    gates = space.gates[b]
    for h in range(4 * width):
        gates[h] += before[h] + here[h]
    for h in range(width):
        let_in, keep = sigmoid(gates[h]), sigmoid(gates[width + h])
        cell = keep * space.cell[b, h] + let_in * np.tanh(gates[2 * width + h])
        space.cell[b, h] = cell
        space.state[b, h] = sigmoid(gates[3 * width + h]) * np.tanh(cell)


@called
def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)) in float32."""
    one = np.float32(1)
    return one / (one + np.exp(-x))


@called
def soften(x: Floats) -> None:
    """Replace the numbers by their softmax."""
    top, total = x[0], np.float32(0)
    for i in range(len(x)):
        top = max(top, x[i])
    for i in range(len(x)):
        x[i] = np.exp(x[i] - top)
        total += x[i]
    for i in range(len(x)):
        x[i] /= total
