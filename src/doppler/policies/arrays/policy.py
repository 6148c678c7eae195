"""ArrayPolicy: SEL and PLC over one encoder (Sec. 4.2), as `doppler.policies` has them in torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from doppler.base.arrays import on_cache_lines
from doppler.mdp.features import CROWDED, DEVICE_FEATURES, FEATURE_SETS, NUM_FEATURES, VERTEX_STATE
from doppler.mdp.instance import Instance
from doppler.policies.arrays.config import (
    NUM_EDGE_COLUMNS,
    NUM_STATE_COLUMNS,
    NUM_VERTEX_COLUMNS,
    PolicyConfig,
)

if TYPE_CHECKING:
    from doppler.mdp.kernel import Weights
    from doppler.policies.arrays.kernel import Round

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ArrayPolicy:
    """A policy as plain arrays."""

    config: PolicyConfig
    tensors: Mapping[str, Floats]  # by the names that torch gives them; matrices are (to, from)

    def on(self, instance: Instance) -> "Weights":
        """The policy on one instance: one pass of message passing, enough for whole episodes.

        Equations and shapes are at `MessageRound`, `Select` and `Place` of `doppler.policies`.
        """
        from doppler.mdp.kernel import Weights
        from doppler.policies.arrays.kernel import (
            linear,
            make_scratch,
            means_along,
            pass_messages,
            score,
        )

        n, width = instance.num_vertices, self.config.width
        vertices = _vertex_columns(instance)
        h, z, other = (np.empty((n, width), np.float32) for _ in range(3))
        linear(vertices, *self._layer("encoder.embed"), h)
        linear(vertices, *self._layer("features"), z)
        columns = np.ascontiguousarray(_spread(instance.edge_features))
        scratch = make_scratch(n, width)
        for number in range(self.config.rounds):
            pass_messages(instance.tables, columns, self._round(number), h, scratch, other)
            h, other = other, h
        scratch.wide[:, :width], scratch.wide[:, 3 * width :] = h, z
        means_along(instance.entry_path, h, scratch, width)
        means_along(instance.exit_path, h, scratch, 2 * width)
        scores, (last, bias) = np.empty(n), self._layer("select.head.2")
        score(scratch, *self._layer("select.head.0"), last[:, 0].copy(), float(bias[0]), scores)
        vertex, placed = on_cache_lines(np.empty((n, width), np.float32)), other
        linear(np.concatenate([h, z], axis=1), *self._layer("place.vertex"), vertex)
        linear(h, *self._layer("place.placed"), placed)
        placed *= np.float32(instance.num_devices / max(n, 1))
        hidden, hidden_bias = self._layer("place.hidden")
        return Weights(
            score=scores,
            vertex=vertex,
            placed=placed,
            feature=self._feature_rows(),
            hidden=hidden,
            hidden_bias=hidden_bias,
            out=self.tensors["place.out.weight"][0].copy(),
            crowded=np.array([self._crowded()], np.float32),
            most=np.array([self.config.most_devices], np.int64),
        )

    def _crowded(self) -> float:
        """What the logit of a device loses by `overfull`, if the policy has that feature."""
        return CROWDED if "overfull" in FEATURE_SETS[self.config.features] else 0.0

    def _layer(self, name: str) -> tuple[Floats, Floats]:
        """The matrix of a linear layer, (from, to), and its bias."""
        matrix = on_cache_lines(self.tensors[f"{name}.weight"].T)
        bias = self.tensors.get(f"{name}.bias")
        return matrix, np.zeros(matrix.shape[1], np.float32) if bias is None else bias.copy()

    def _round(self, number: int) -> "Round":
        from doppler.policies.arrays.kernel import Round

        name = f"encoder.rounds.{number}"
        return Round(
            *self._layer(f"{name}.ends"),
            self._layer(f"{name}.edge")[0],
            *self._layer(f"{name}.update"),
            self.tensors[f"{name}.norm.weight"].copy(),
            self.tensors[f"{name}.norm.bias"].copy(),
        )

    def _feature_rows(self) -> Floats:
        """(30, H) PLC's matrix for all device features; 0 for those that it does not read."""
        rows = np.zeros((NUM_FEATURES, self.config.width), np.float32)
        names = FEATURE_SETS[self.config.features]
        rows[[DEVICE_FEATURES.index(name) for name in names]] = self._layer("place.feature")[0]
        return on_cache_lines(rows)


def from_torch(policy: Any) -> ArrayPolicy:
    """A copy of a `DualPolicy` as it is now."""
    tensors = {
        name: np.array(tensor.detach().cpu().numpy(), np.float32)
        for name, tensor in policy.state_dict().items()
    }
    return ArrayPolicy(policy.config, tensors)


def shapes_of(config: PolicyConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a policy, by its name."""
    width = config.width
    shapes = {
        **_linear("encoder.embed", NUM_VERTEX_COLUMNS, width),
        **_linear("features", NUM_VERTEX_COLUMNS, width),
        **_linear("select.head.0", 4 * width, width),
        **_linear("select.head.2", width, 1),
        **_linear("place.vertex", 2 * width, width),
        "place.placed.weight": (width, width),
        "place.feature.weight": (width, len(FEATURE_SETS[config.features])),
        **_linear("place.hidden", width, width // 2),
        "place.out.weight": (1, width // 2),
    }
    for number in range(config.rounds):
        name = f"encoder.rounds.{number}"
        shapes |= _linear(f"{name}.ends", width, 4 * width)
        shapes |= {f"{name}.edge.weight": (2 * width, NUM_EDGE_COLUMNS)}
        shapes |= _linear(f"{name}.update", 3 * width, width)
        shapes |= {f"{name}.norm.{part}": (width,) for part in ("weight", "bias")}
    return shapes


def _linear(name: str, before: int, after: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (after, before), f"{name}.bias": (after,)}


def _vertex_columns(instance: Instance) -> Floats:
    """(n, 13) every feature as log1p and as square root, then VERTEX_STATE with nothing placed."""
    state = np.zeros((instance.num_vertices, NUM_STATE_COLUMNS), np.float32)
    state[:, VERTEX_STATE.index("candidate")] = instance.tables.num_reads == 0
    return np.concatenate([_spread(instance.vertex_features), state], axis=1)


def _spread(values: Floats) -> Floats:
    return np.concatenate([np.log1p(values), np.sqrt(values)], axis=1)
