"""Placeto (Addanki et al. 2019): one vertex per step, message passing at every step."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import relu
from torch.utils.checkpoint import checkpoint

from doppler.base.arrays import IntArray
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import Roller, Sampling
from doppler.policies.configs import PlacetoConfig
from doppler.policies.rivals.base import (
    RivalPolicy,
    RivalView,
    costs_and_sizes,
    fixed_order,
    linear,
    ordered_edges,
    spread,
)
from doppler.policies.rivals.placeto_kernel import Floats, Hearing, Layers, make_space, play
from doppler.policies.rivals.placeto_layers import (
    Normal,
    TwoLinear,
    averaged,
    even_at_first,
)
from doppler.policies.rivals.placeto_plan import (
    Level,
    MessagePlan,
    Ways,
    make_plan,
    make_ways,
)

NUM_STATIC = 4  # cost and output size, spread
NUM_FLAGS = 2  # is the current vertex, was visited
STEPS = 1 << 20  # vertices times steps of a plan, at most
CHUNK = 1 << 14  # entries of all episodes that are looked at together: fits a cache
MAX_PLANS = 1 << 22  # vertices times steps of a graph, up to which its plans are kept
MAX_SAVED = 1 << 30  # bytes kept for gradients; beyond, they are computed again


@dataclass(frozen=True, slots=True)
class PlacetoView(RivalView):
    """What Placeto reads; vertices are numbered by the step that places them."""

    static: Tensor  # (n, 4) cost and output size
    ways: Ways  # of messages
    rounds: int  # of them
    ancestors: npt.NDArray[np.uint8]  # (n, n / 8) bits: who leads to a vertex
    descendants: npt.NDArray[np.uint8]  # likewise: whom it leads to
    start: int  # the device where vertices are at first; the number of devices where nowhere
    plans: dict[tuple[int, int], MessagePlan] = field(
        default_factory=dict
    )  # made so far, if not large

    def chunks(self) -> list[tuple[int, int]]:
        """The steps that are planned together: from, and up to."""
        n = self.num_steps
        size = max(STEPS // n, 1)
        return [(first, min(first + size, n)) for first in range(0, n, size)]

    def plan(self, first: int, last: int) -> MessagePlan:
        """What gradients of steps first, …, last - 1 need."""
        if (first, last) in self.plans:
            return self.plans[first, last]
        groups = self.groups(np.arange(first, last))
        device = str(self.static.device)
        plan = make_plan(self.ways, self.rounds, groups, first, last, device)
        if self.num_steps**2 <= MAX_PLANS:
            self.plans[first, last] = plan
        return plan

    def groups(self, steps: IntArray) -> Floats:
        """(C, 3, n) weights of the means over the parents, children and parallel vertices of C.

        Parents are all that lead to a vertex, children all that it leads to.
        """
        n = len(self.order)
        above, below = (
            np.unpackbits(bits[steps], axis=1, count=n).astype(bool)
            for bits in (self.ancestors, self.descendants)
        )
        beside = ~(above | below)
        beside[np.arange(len(steps)), steps] = False
        masks = np.stack([above, below, beside], axis=1).astype(np.float32)
        masks /= np.maximum(masks.sum(axis=2, keepdims=True), 1.0)
        return masks

    def hearing(self) -> Hearing:
        """What acting needs."""
        ways = self.ways.both
        totals = [
            np.asarray(way.sum(axis=1)).reshape(-1).repeat(np.diff(way.indptr)) for way in ways
        ]
        shares = [way.data / total for way, total in zip(ways, totals, strict=True)]
        return Hearing(
            begin=np.stack([way.indptr for way in ways]).astype(np.int64),
            who=np.stack([way.indices for way in ways]).astype(np.int64),
            share=np.stack(shares).astype(np.float32),
            ancestors=self.ancestors,
            descendants=self.descendants,
        )


class PlacetoPolicy(RivalPolicy):
    r"""Logits of all devices for the vertex at hand, from the graph as it is placed now.

    .. math::
        x_u^{(i+1)} = x_u^{(0)} + g(mean_{w ∈ ξ(u)} f(x_w^{(i)})), \quad
        e_u = [x_u^{down} ‖ x_u^{up}]

    .. math::
        P_i = mean_{u ∈ S_i(v)} l_i(e_u), \quad
        z_v = [e_v ‖ h_1(P_1) ‖ h_2(P_2) ‖ h_3(P_3)], \quad
        π(d | v) = softmax(FFNN(normal(z_v)))

    with ξ(u) the producers of u (down) or its readers (up), f and g linear with ReLU, others for
    each way, and :math:`S_i(v)` the parents, the children and the parallel vertices of v. Messages
    start from the cost and the output size of each vertex, the one-hot of the device it is on now,
    and whether it is v or was visited. An episode takes n passes of message passing over n
    vertices; they share what is the same in several of them (see `placeto_plan`).
    """

    kind = PlacetoConfig.kind

    def __init__(self, config: PlacetoConfig) -> None:
        super().__init__()
        self.config = config
        width, both = config.width, 2 * config.width
        self.static = nn.Linear(NUM_STATIC, width)
        self.state = nn.Linear(config.devices + NUM_FLAGS, width, bias=False)
        self.embed = nn.Linear(width, width)
        self.send, self.receive = TwoLinear(width), TwoLinear(width)  # f, g
        self.inside = nn.ModuleList(nn.Linear(both, width) for _ in range(3))  # l
        self.outside = nn.ModuleList(nn.Linear(width, both) for _ in range(3))  # h
        self.normal = Normal(4 * both)
        self.head = nn.Sequential(
            nn.Linear(4 * both, 2 * both),
            nn.ReLU(),
            nn.Linear(2 * both, both),
            nn.ReLU(),
            nn.Linear(both, config.devices),
        )
        self.apply(even_at_first)

    @property
    def rewards_steps(self) -> bool:
        """Whether each step is rewarded."""
        improves: bool = self.config.form == "improve"
        return improves

    def after_step(self) -> None:
        """Normalise by what was seen in the update."""
        self.normal.settle()

    def view(self, instance: Instance, device: str = "cpu", *, threads: int = 1) -> PlacetoView:
        """What the policy reads of an instance."""
        self.check_machine(instance.num_devices, instance.topology.name)
        order, n = fixed_order(instance), instance.num_vertices
        source, target = ordered_edges(instance, order)
        return PlacetoView(
            order=order,
            roller=Roller(instance, threads=threads),
            step=np.argsort(order),
            first=np.arange(n),
            static=spread(costs_and_sizes(instance)[order], device),
            ways=make_ways(source, target, n),
            rounds=self.config.rounds,
            ancestors=reachable(source, target, n),
            descendants=reachable(n - 1 - target, n - 1 - source, n, reverse=True),
            start=0 if self.config.form == "improve" else self.config.devices,
        )

    def act(
        self, view: PlacetoView, count: int, sampling: Sampling, generator: torch.Generator
    ) -> Tensor:
        """(B, n) the devices of `count` sampled episodes, without gradients."""
        n, config = view.num_steps, self.config
        drawn = torch.rand((count, n, 3), generator=generator).numpy()
        taken = np.empty((count, n), np.int64)
        logits = np.empty((count, n, config.devices), np.float32)
        chance = (sampling.place_temperature, sampling.epsilon)
        space = make_space(n, config.width, config.rounds)
        play(self._layers(view), view.hearing(), view.start, drawn, *chance, taken, logits, space)
        return torch.as_tensor(taken, device=view.static.device)

    def _layers(self, view: PlacetoView) -> Layers:
        """The weights as the kernel takes them."""
        first, middle, out = (linear(self.head[i]) for i in (0, 2, 4))
        insides, outsides = ([linear(m) for m in part] for part in (self.inside, self.outside))
        with torch.no_grad():
            scaled = first.weight / self.normal.spread
            tensors = [
                *(self.static(view.static), *self._states(), self.embed.weight.T, self.embed.bias),
                *(self.send.weight, self.send.bias.squeeze(1)),
                *(self.receive.weight, self.receive.bias.squeeze(1)),
                torch.cat([layer.weight.T for layer in insides], dim=1),
                torch.cat([layer.bias for layer in insides]),
                torch.stack([layer.weight.T for layer in outsides]),
                torch.stack([layer.bias for layer in outsides]),
                *(scaled.T, first.bias - scaled @ self.normal.center),
                *(middle.weight.T, middle.bias, out.weight.T, out.bias),
            ]
        return Layers(*(tensor.detach().cpu().contiguous().numpy() for tensor in tensors))

    def _states(self) -> tuple[Tensor, Tensor]:
        """(D + 1, H) of the device a vertex is on, or of none, and (2, H) of the flags."""
        weight, devices = self.state.weight.T, self.config.devices
        on, flags = weight[:devices], weight[devices:]
        return torch.cat([on, torch.zeros_like(on[:1])]), flags

    def log_probs(self, view: PlacetoView, taken: Tensor, temperature: float = 1.0) -> Tensor:
        """(B, n, D) log-probability of every device at every step.

        Where what gradients need is large, it is computed again for them, part by part.
        """
        parts = []
        for first, last in view.chunks():
            plan = view.plan(first, last)
            some = max(CHUNK * (2 * self.config.rounds + 2) // plan.size, 1)  # episodes at once
            saved = 16 * plan.size * len(taken) * self.config.width * len(view.chunks())
            run = self._planned
            if torch.is_grad_enabled() and saved > MAX_SAVED:
                run = partial(checkpoint, run, use_reentrant=False, preserve_rng_state=False)
            logits = [run(view, plan, taken[at : at + some]) for at in range(0, len(taken), some)]
            parts.append(torch.cat(logits, dim=1))
        return (torch.cat(parts).transpose(0, 1) / temperature).log_softmax(dim=2)

    def _planned(self, view: PlacetoView, plan: MessagePlan, taken: Tensor) -> Tensor:
        """(C, B, D) logits at the steps of a plan, of episodes that took (B, n)."""
        first = self._at_first(view, plan.vertex, plan.step, taken)
        ends = []
        for way, levels in enumerate(plan.levels):
            x = first
            for level in levels:
                x = self._round(x, first, level, way)
            ends.append(x[plan.last[way]])
        e = torch.cat(ends, dim=2)  # (E, B, 2H)
        pools = [
            averaged(group, relu(inside(e)))
            for group, inside in zip(plan.groups, self.inside, strict=True)
        ]
        return self._decide(e[plan.mine], pools)

    def _round(self, x: Tensor, first: Tensor, level: Level, way: int) -> Tensor:
        heard = averaged(level.heard, self.send(x, way))
        received: Tensor = self.receive(heard, way)
        return received + first[level.first]

    def _at_first(self, view: PlacetoView, vertex: Tensor, step: Tensor, taken: Tensor) -> Tensor:
        """(N, B, H) what messages start from, of (N,) vertices at steps of (B, n) episodes."""
        on, flags = self._states()
        is_current, is_placed = (step == vertex).unsqueeze(1), (step > vertex).unsqueeze(1)
        static = self.static(view.static)[vertex] + is_current * flags[0] + is_placed * flags[1]
        device = torch.where(is_placed, taken.T[vertex], view.start)  # (N, B)
        x: Tensor = self.embed(relu(static.unsqueeze(1) + on[device]))
        return x

    def _decide(self, mine: Tensor, pools: list[Tensor]) -> Tensor:
        """(…, D) logits from (…, 2H) the vertex at hand and three (…, H) means over groups."""
        pooled = [relu(layer(pool)) for layer, pool in zip(self.outside, pools, strict=True)]
        logits: Tensor = self.head(self.normal(torch.cat([mine, *pooled], dim=-1)))
        return logits


def reachable(
    source: IntArray, target: IntArray, n: int, *, reverse: bool = False
) -> npt.NDArray[np.uint8]:
    """(n, n / 8) bits: from whom edges lead to each vertex; all of them go to higher numbers.

    If `reverse`, vertices are numbered backwards, and the result is by their true numbers.
    """
    bits = np.zeros((n, -(-n // 8)), np.uint8)
    for edge in np.argsort(source, kind="stable").tolist():
        a, b = int(source[edge]), int(target[edge])
        true = n - 1 - a if reverse else a
        bits[b] |= bits[a]
        bits[b, true >> 3] |= 0x80 >> (true & 7)
    return bits[::-1].copy() if reverse else bits
