"""Guards: what a compiled module relies on, and whether it still holds."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import TreeSpec

from doppler.engine.loaded import version_of

_ABSENT = object()


def arguments_guard(leaves: Sequence[Any], spec: TreeSpec) -> Any:
    """What a plan relies on of the arguments of a call; a `TypeError` where one has no hash.

    >>> from torch.utils._pytree import tree_flatten
    >>> guards = [arguments_guard(*tree_flatten((torch.ones(n), 2))) for n in (3, 3, 4)]
    >>> guards[0] == guards[1], guards[0] == guards[2]
    (True, False)
    """
    guard = (str(spec), tuple([_leaf(each) for each in leaves]))
    hash(guard)
    return guard


def _leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.dtype, leaf.device
    return type(leaf), leaf


class ModuleGuard:
    """The parameters, buffers, submodules and modes that a module had.

    Values of parameters may change: whoever runs a plan sees that. This notices other parameters,
    and such as were cast or moved in place.

    >>> module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    >>> guard = ModuleGuard(module)
    >>> guard.holds()
    True
    >>> module[0].weight = torch.nn.Parameter(torch.ones(2, 2))
    >>> guard.holds()
    False
    """

    def __init__(self, module: torch.nn.Module) -> None:
        found: list[tuple[dict[str, Any], str, Any]] = []
        for each in module.modules():
            found.append((each.__dict__, "training", each.training))
            for table in (each._parameters, each._buffers, each._modules):
                found += [(table, name, value) for name, value in table.items()]
        self._found = found
        tensors = [value for _, _, value in found if isinstance(value, torch.Tensor)]
        self._tensors = [(each, each.shape, each.dtype, each.device) for each in tensors]

    def holds(self) -> bool:
        """Whether nothing was replaced or removed."""
        return all(table.get(name, _ABSENT) is value for table, name, value in self._found) and all(
            each.dtype is dtype and each.shape == shape and each.device == device
            for each, shape, dtype, device in self._tensors
        )


class ValuesGuard:
    """The values that tensors had.

    >>> tensor = torch.ones(2)
    >>> guard = ValuesGuard([tensor])
    >>> guard.holds(), tensor.mul_(2).sum() > 0 and guard.holds()
    (True, False)
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._versions = [(each, version_of(each)) for each in tensors]

    def holds(self) -> bool:
        """Whether all have these values still, as far as torch counts changes."""
        return all(version_of(each) == version for each, version in self._versions)
