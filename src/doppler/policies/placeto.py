"""Placeto (Addanki et al. 2019): one vertex per step, message passing at every step."""

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import coo_matrix as sparse_matrix
from torch import Tensor, nn
from torch.nn.functional import one_hot, relu
from torch.utils.checkpoint import checkpoint

from doppler.arrays import IntArray
from doppler.errors import ConfigError, UnknownNameError
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import Sampling
from doppler.policies.baseline import (
    BaselinePolicy,
    View,
    costs_and_sizes,
    fixed_order,
    ordered_edges,
    pick,
    spread,
)

FORMS = ("pass", "improve")
NUM_STATIC = 4  # cost and output size, spread
NUM_FLAGS = 2  # is the current vertex, was visited
CHUNK = 1 << 14  # vertices of all episodes and steps that are looked at together: fits a cache
MOST_SAVED = 1 << 30  # bytes kept for gradients; beyond, they are computed again


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacetoConfig:
    """The shape of Placeto's policy."""

    kind: ClassVar[str] = "placeto"

    width: int = 16  # H, of all embeddings
    rounds: int = 8  # of message passing, each way; as in the released code
    # `pass`: nothing is placed at first, and only the end counts (as in the DOPPLER paper);
    # `improve`: all is on the first device at first, and every step counts (Addanki et al., Sec. 3)
    form: str = "pass"
    devices: int = 0  # see BaselineConfig

    def __post_init__(self) -> None:
        if self.width < 2 or self.rounds < 0 or self.devices < 0:
            raise ConfigError("width must be at least 2, rounds and devices not negative")
        if self.form not in FORMS:
            raise UnknownNameError("form of Placeto", self.form, FORMS)


class Average(NamedTuple):
    """A sparse matrix that averages over neighbours, and its transpose for gradients."""

    matrix: Tensor  # (n, n) sparse
    transposed: Tensor


@dataclass(frozen=True, slots=True)
class PlacetoView(View):
    """What Placeto reads; vertices are numbered by the step that places them."""

    static: Tensor  # (n, 4) cost and output size
    neighbours: Average  # over producers, then, from row n on, over readers
    ancestors: npt.NDArray[np.uint8]  # (n, n / 8) bits: who leads to a vertex
    descendants: npt.NDArray[np.uint8]  # likewise: whom it leads to
    start: Tensor  # (n, D) where vertices are at first, one-hot; 0 where nowhere

    def groups(self, steps: IntArray) -> Tensor:
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
        return torch.as_tensor(masks, device=self.static.device)


class Averaged(torch.autograd.Function):
    """An `Average` of (n, c), with gradients for that."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, transposed: Tensor, dense: Tensor) -> Tensor:
        """(n, c)."""
        ctx.save_for_backward(transposed)
        return matrix @ dense

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, None, Tensor]:
        """Nothing for the matrix."""
        (transposed,) = ctx.saved_tensors
        return None, None, transposed @ grads[0]


class TwoLinear(nn.Module):
    """Two linear layers side by side: (2, k, H) → (2, k, H)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = [nn.Linear(width, width) for _ in range(2)]  # for their random weights
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, x: Tensor) -> Tensor:
        """Each of the two for its half."""
        return torch.baddbmm(self.bias, x, self.weight)


class Messages(nn.Module):
    r"""Rounds of messages both ways: (n, K, H) → (n, K, 2H), for K states side by side.

    .. math::
        x_v^{(i+1)} = x_v^{(0)} + g(mean_{u ∈ ξ(v)} f(x_u^{(i)}))

    with ξ(v) the producers of v (down) or its readers (up). f and g are linear with ReLU, others
    for each way. Both ways are computed at once, as one graph with two copies of each vertex.
    """

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.send, self.receive = TwoLinear(width), TwoLinear(width)

    def forward(self, first: Tensor, neighbours: Average) -> Tensor:
        """What vertices know after hearing from their neighbours, again and again."""
        n, states, width = first.shape
        start = first.view(1, n * states, width).expand(2, -1, -1)
        x = start
        for _ in range(self.rounds):
            sent = self.send(x).relu_().view(2 * n, states * width)
            heard: Tensor = Averaged.apply(*neighbours, sent)  # type: ignore[no-untyped-call]
            x = self.receive(heard.view(2, n * states, width)).relu_() + start
        return torch.cat([*x], dim=1).view(n, states, 2 * width)


class PlacetoPolicy(BaselinePolicy):
    r"""Logits of all devices for the vertex at hand, from the graph as it is placed now.

    .. math::
        e_u = [x_u^{down} ‖ x_u^{up}], \quad
        z_v = [e_v ‖ h_1(P_1) ‖ h_2(P_2) ‖ h_3(P_3)], \quad
        P_i = mean_{u ∈ S_i(v)} l_i(e_u), \quad
        π(d | v) = softmax(FFNN(z_v))

    with messages from producers (down) and from readers (up), and :math:`S_i(v)` the parents, the
    children and the parallel vertices of v. Messages start from the cost and the output size of
    each vertex, the one-hot of the device it is on now, and whether it is v or was visited.
    An episode takes n passes of message passing over n vertices: its time grows with n².
    """

    kind = PlacetoConfig.kind

    def __init__(self, config: PlacetoConfig) -> None:
        super().__init__()
        self.config = config
        width, both = config.width, 2 * config.width
        self.static = nn.Linear(NUM_STATIC, width)
        self.state = nn.Linear(config.devices + NUM_FLAGS, width, bias=False)
        self.messages = Messages(width, config.rounds)
        self.inside = nn.Linear(both, 3 * width)  # l_1, l_2, l_3
        self.outside = nn.ModuleList(nn.Linear(width, both) for _ in range(3))
        self.head = nn.Sequential(
            nn.Linear(4 * both, 2 * both),
            nn.ReLU(),
            nn.Linear(2 * both, both),
            nn.ReLU(),
            nn.Linear(both, config.devices),
        )
        self.apply(strong_at_first)

    def view(self, instance: Instance, device: str = "cpu") -> PlacetoView:
        """What the policy reads of an instance."""
        self.check_machine(instance.num_devices, instance.topology.name)
        order, n = fixed_order(instance), instance.num_vertices
        source, target = ordered_edges(instance, order)
        start = torch.zeros(n, instance.num_devices, device=device)
        if self.config.form == "improve":
            start[:, 0] = 1.0
        return PlacetoView(
            order=order,
            step=np.argsort(order),
            first=np.arange(n),
            static=spread(costs_and_sizes(instance)[order], device),
            neighbours=average(
                np.concatenate([target, source + n]),
                np.concatenate([source, target + n]),
                *(2 * n, device),
            ),
            ancestors=reachable(source, target, n),
            descendants=reachable(n - 1 - target, n - 1 - source, n, reverse=True),
            start=start,
        )

    def act(
        self, view: PlacetoView, count: int, sampling: Sampling, generator: torch.Generator
    ) -> Tensor:
        """(B, n) the devices of so many sampled episodes, without gradients."""
        n, devices = view.start.shape
        taken = torch.zeros(count, n, dtype=torch.int64, device=view.static.device)
        now = view.start.unsqueeze(1).repeat(1, count, 1)  # (n, B, D)
        with torch.no_grad():
            static = self.static(view.static)
            for step in range(n):
                logits = self._logits(view, static, np.array([step]), now.unsqueeze(1))[0]
                taken[:, step] = pick(logits, sampling, generator)
                now[step] = one_hot(taken[:, step], devices).to(now)
        return taken

    def log_probs(self, view: PlacetoView, taken: Tensor, temperature: float = 1.0) -> Tensor:
        """(B, n, D) log-probability of every device at every step.

        Where what gradients need is large, it is computed again for them, chunk by chunk.
        """
        count, n = taken.shape
        size = max(CHUNK // max(n * count, 1), 1)
        chunks = [np.arange(first, min(first + size, n)) for first in range(0, n, size)]
        saved = 4 * n * n * count * self.config.width * (8 * self.config.rounds + 16)
        if torch.is_grad_enabled() and saved > MOST_SAVED:
            again = partial(checkpoint, self._chunk, use_reentrant=False, preserve_rng_state=False)
            logits = [again(view, steps, taken) for steps in chunks]
        else:
            logits = [self._chunk(view, steps, taken) for steps in chunks]
        return (torch.cat(logits).transpose(0, 1) / temperature).log_softmax(dim=2)

    def _chunk(self, view: PlacetoView, steps: IntArray, taken: Tensor) -> Tensor:
        """(C, B, D) logits at (C,) steps of episodes that took (B, n)."""
        n, devices = view.start.shape
        went = one_hot(taken.T, devices).to(view.start)  # (n, B, D)
        at = torch.as_tensor(steps, device=taken.device)
        before = torch.arange(n, device=taken.device).unsqueeze(1) < at  # (n, C)
        now = torch.where(before[..., None, None], went.unsqueeze(1), view.start[:, None, None])
        return self._logits(view, self.static(view.static), steps, now)

    def _logits(self, view: PlacetoView, static: Tensor, steps: IntArray, now: Tensor) -> Tensor:
        """(C, B, D) logits at (C,) steps from (n, C, B, D) the devices that vertices are on."""
        n, size, count, devices = now.shape
        at = torch.as_tensor(steps, device=now.device)
        vertices = torch.arange(n, device=now.device).unsqueeze(1)
        flags = torch.stack([vertices == at, vertices < at], dim=2).to(now)  # (n, C, 2)
        on, flag = self.state.weight.T[:devices], self.state.weight.T[devices:]
        x = (static.unsqueeze(1) + flags @ flag).unsqueeze(2) + now @ on
        x = x.view(n, size * count, -1)
        e = self.messages(x, view.neighbours).view(n, size, count, -1)
        parts = relu(self.inside(e)).view(n, size, count, 3, -1)
        pools = torch.einsum("cin,ncbih->icbh", view.groups(steps), parts)
        mine = e[at, torch.arange(size, device=now.device)]  # (C, B, 2H)
        pooled = [relu(layer(pool)) for layer, pool in zip(self.outside, pools, strict=True)]
        logits: Tensor = self.head(torch.cat([mine, *pooled], dim=2))
        return logits


def strong_at_first(layer: nn.Module) -> None:
    """Let what goes through a linear layer with ReLU come out as large as it was (He et al. 2015).

    With torch's own first weights nothing that neighbours tell would be left after some rounds.
    """
    if isinstance(layer, (nn.Linear, TwoLinear)):
        fan_in = layer.weight.shape[1]
        nn.init.uniform_(layer.weight, -((6 / fan_in) ** 0.5), (6 / fan_in) ** 0.5)


def average(row: IntArray, column: IntArray, n: int, device: str) -> Average:
    """The mean over the columns of each row, as often as they are there."""
    values = 1.0 / np.bincount(row, minlength=n)[row]
    forward = sparse_matrix((values, (row, column)), shape=(n, n))
    with warnings.catch_warnings():  # torch says that its sparse matrices are young
        warnings.simplefilter("ignore")
        return Average(*(_csr(matrix.tocsr(), device) for matrix in (forward, forward.T)))


def _csr(matrix: Any, device: str) -> Tensor:
    return torch.sparse_csr_tensor(
        torch.as_tensor(matrix.indptr.astype(np.int64)),
        torch.as_tensor(matrix.indices.astype(np.int64)),
        torch.as_tensor(matrix.data.astype(np.float32)),
        size=matrix.shape,
        device=device,
    )


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
