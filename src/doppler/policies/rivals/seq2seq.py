"""The sequence placer (Mirhoseini et al. 2017): sequence to sequence, with attention."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from doppler.base.arrays import FloatArray, IntArray
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import Roller, Sampling
from doppler.policies.configs import Seq2SeqConfig
from doppler.policies.rivals.base import (
    NUM_KINDS,
    RivalPolicy,
    RivalView,
    apart_at_first,
    costs_and_sizes,
    fixed_order,
    kinds_of,
    linear,
    ordered_edges,
    spread,
)
from doppler.policies.rivals.rival_pass import RivalPass
from doppler.policies.rivals.seq2seq_kernel import DecoderLayers, make_space, play

NUM_FEATURES = 4  # cost and output size, spread


@dataclass(frozen=True, slots=True)
class Seq2SeqView(RivalView):
    """What the sequence placer reads: a graph as a sequence of g groups."""

    features: Tensor  # (g, c) cost, output size, kinds, and which groups feed and read it
    encoded: "Encoded | None" = None  # in a forward pass: the same for all its episodes


class Encoded(NamedTuple):
    """What the encoder makes of a sequence."""

    groups: Tensor  # (g, H)
    state: Tensor  # (1, 1, H) with which the decoder begins
    cell: Tensor  # (1, 1, H)


class Seq2SeqPolicy(RivalPolicy):
    r"""Logits of all devices for one group after the other.

    .. math::
        e_{1..g} = LSTM(W x_{1..g}), \quad
        s_i = LSTM(s_{i-1}, [E[d_{i-1}] ‖ e_i]), \quad
        a_i = \sum_j softmax_j(s_i^⊤ A e_j) e_j, \quad
        π(d_i | d_{<i}) = softmax(FFNN([s_i ‖ a_i]))

    with :math:`E[d_{i-1}]` what is learned about the device that the group before was given.
    """

    kind = Seq2SeqConfig.kind

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.embed = nn.Linear(NUM_FEATURES + NUM_KINDS + 2 * config.groups, width)
        self.encoder = nn.LSTM(width, width, batch_first=True)
        self.device = nn.Embedding(config.devices + 1, width)  # the last: at the beginning
        self.decoder = nn.LSTM(2 * width, width, batch_first=True)
        self.attend = nn.Linear(width, width, bias=False)
        self.head = nn.Sequential(
            nn.Linear(2 * width, width),
            nn.Tanh(),
            apart_at_first(nn.Linear(width, config.devices)),
        )

    def view(self, instance: Instance, device: str = "cpu", *, threads: int = 1) -> Seq2SeqView:
        """What the policy reads of an instance."""
        self.check_machine(instance.num_devices, instance.topology.name)
        order, n = fixed_order(instance), instance.num_vertices
        edges = ordered_edges(instance, order)
        group = grouped(instance, order, self.config.groups)  # of the vertices in order
        features = group_features(instance, order, edges, group, self.config.groups, device)
        return Seq2SeqView(
            order=order,
            roller=Roller(instance, threads=threads),
            step=group[np.argsort(order)],
            first=np.unique(group, return_index=True)[1] if n else np.zeros(0, np.int64),
            features=features,
        )

    def on(self, view: Seq2SeqView) -> RivalPass:
        """What training asks of the policy on one instance."""
        return RivalPass(self, replace(view, encoded=self._encode(view)))

    def act(
        self, view: Seq2SeqView, count: int, sampling: Sampling, generator: torch.Generator
    ) -> Tensor:
        """(B, g) the devices of `count` sampled episodes, without gradients."""
        steps, config = view.num_steps, self.config
        draws = torch.rand((steps, 3, count), generator=generator).numpy()
        taken = np.empty((count, steps), np.int64)
        logits = np.empty((steps, count, config.devices), np.float32)
        chance = (sampling.place_temperature, sampling.epsilon)
        space = make_space(count, steps, config.width)
        play(self._decoder(view), draws, *chance, taken, logits, space)
        return torch.as_tensor(taken, device=view.features.device)

    def _decoder(self, view: Seq2SeqView) -> DecoderLayers:
        """The weights as the kernel takes them."""
        ih, hh, ih_bias, hh_bias = self.decoder.all_weights[0]
        first, out = linear(self.head[0]), linear(self.head[2])
        with torch.no_grad():
            encoded, state, cell = self._encode(view)
            of_device, of_group = ih.T.chunk(2)
            of_state, of_seen = first.weight.T.chunk(2)
            tensors = [
                *(state[0], cell[0]),
                *(self.device.weight @ of_device, encoded @ of_group),
                *(hh.T, ih_bias + hh_bias),
                *((encoded @ self.attend.weight).T, encoded.new_zeros(max(encoded.shape))),
                *(encoded @ of_seen, of_state, first.bias),
                *(out.weight.T, out.bias),
            ]
        return DecoderLayers(*(tensor.detach().cpu().contiguous().numpy() for tensor in tensors))

    def log_probs(self, view: Seq2SeqView, taken: Tensor, temperature: float = 1.0) -> Tensor:
        """(B, g, D) log-probability of every device at every step."""
        count = len(taken)
        encoded, *first = self._encode(view)
        state, cell = (each.repeat(1, count, 1) for each in first)
        begin = taken.new_full((count, 1), self.config.devices)
        before = torch.cat([begin, taken[:, :-1]], dim=1)
        logits, _ = self._decode(before, encoded.expand(count, -1, -1), (state, cell), encoded)
        return (logits / temperature).log_softmax(dim=2)

    def _encode(self, view: Seq2SeqView) -> Encoded:
        """The groups in their sequence, and the state that decoders begin with."""
        if view.encoded is not None:
            return view.encoded
        groups, (state, cell) = self.encoder(self.embed(view.features).unsqueeze(0))
        return Encoded(groups[0], state, cell)

    def _decode(
        self, before: Tensor, here: Tensor, state: tuple[Tensor, Tensor], encoded: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(B, t, D) logits of t steps and the state after them.

        `before` is (B, t) the device of the group before each, `here` (B, t, H) the group at hand.
        """
        s, state = self.decoder(torch.cat([self.device(before), here], dim=2), state)
        weights = (self.attend(s) @ encoded.T).softmax(dim=2)  # (B, t, g)
        return self.head(torch.cat([s, weights @ encoded], dim=2)), state


def grouped(instance: Instance, order: IntArray, max_groups: int) -> IntArray:
    """(n,) the group of each vertex in order; groups are numbered by their first vertex.

    A graph with too many vertices is made shorter in two steps: vertices that just pass on what
    one other vertex made for them alone go with that one; and if there are still too many, as many
    consecutive groups as it takes become one.
    """
    n = len(order)
    if n <= max_groups:
        return np.arange(n)
    source, target = ordered_edges(instance, order)
    alone = instance.tables.is_head[order] == 0
    leader = np.arange(n)
    inner = alone[target]  # such a vertex has one producer
    leader[target[inner]] = source[inner]
    while not np.array_equal(further := leader[leader], leader):
        leader = further
    group = np.unique(leader, return_inverse=True)[1].astype(np.int64)
    count = int(group.max()) + 1
    return group * max_groups // count if count > max_groups else group


def group_features(
    instance: Instance,
    order: IntArray,
    edges: IntArray,
    group: IntArray,
    max_groups: int,
    device: str,
) -> Tensor:
    """(g, c) float32: cost and output size, shares of the kinds, and the neighbours' numbers."""
    size = int(group.max(initial=-1)) + 1
    totals: FloatArray = np.zeros((size, 2))
    np.add.at(totals, group, costs_and_sizes(instance)[order])
    kinds = np.zeros((size, NUM_KINDS), np.float32)
    np.add.at(kinds, (group, kinds_of(instance)[order]), 1.0)
    kinds /= np.maximum(kinds.sum(axis=1, keepdims=True), 1.0)
    beside = np.zeros((size, 2 * max_groups), np.float32)
    a, b = group[edges]
    beside[b, a] = 1.0  # who feeds a group
    beside[a, max_groups + b] = 1.0  # who reads it
    rest = torch.as_tensor(np.concatenate([kinds, beside], axis=1), device=device)
    return torch.cat([spread(totals, device), rest], dim=1)
