"""How others split models: Accelerate layer by layer, DTensor's plan for Llama within layers.

Of tensor parallelism, products are cut by columns and then by rows, attention by heads, as
`cut_columns` says for any model. All else is cut along the tokens, as sequence parallelism does; or
it runs on the first device, which gets all partial results and gives each of the others the sum.
Part i of everything is on device i, and what cannot be cut evenly on the first.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from doppler.assignment import Assignment
from doppler.frontends.lifting.cut_rules import cut_columns, feature_axes, token_axes
from doppler.frontends.lifting.lift import Lifted
from doppler.frontends.lifting.shards import REDUCE
from doppler.frontends.torch_export import from_functional
from doppler.frontends.torch_model import TorchModel
from doppler.graph.graph import Graph
from doppler.plan import modules_of
from doppler.problem import Problem
from doppler.sharding.cuts import Cut


class TensorParallel:
    """The cuts of one model's operations, and the device of each shard."""

    def __init__(self, *, by_tokens: bool = True) -> None:
        self._by_tokens = by_tokens
        self._axes: dict[tuple[str, bool], int | None] = {}  # whose parts are devices

    def cut(self, lifted: Lifted, parts: int) -> Sequence[Cut]:
        """The cut of each operation of a program."""
        ops, cuts = lifted.program.ops, cut_columns(lifted, parts)
        features, tokens = feature_axes(lifted, parts), token_axes(lifted, parts)
        for op, own, token in zip(ops, features, tokens, strict=True):
            summed = token if self._by_tokens else None
            self._axes[op.name, False] = summed if own is None else own
            self._axes[op.name, True] = summed
        if self._by_tokens:
            return cuts
        return [
            tuple(c if j == own else 1 for j, c in enumerate(cut))
            for cut, own in zip(cuts, features, strict=True)
        ]

    def place(self, graph: Graph) -> Assignment:
        """The assignment of the sharded graph."""
        devices = []
        for v, name in enumerate(graph.vertex_names):
            is_input = bool(graph.is_input[v])
            axis = None if is_input else self._axes[graph.meta_ops[v], graph.roles[v] == REDUCE]
            index = name.rpartition("[")[2].rstrip("]").split(",")
            devices.append(-1 if is_input else 0 if axis is None else int(index[axis]))
        return Assignment(np.array(devices), placer="tensor-parallel")


def tensor_parallel(
    program: ExportedProgram, parts: int, *, by_tokens: bool = True
) -> tuple[TorchModel, Assignment]:
    """A functional program that is cut like this, and its assignment to as many devices."""
    plan = TensorParallel(by_tokens=by_tokens)
    with torch.no_grad():
        model = from_functional(program, parts=parts, method=plan.cut)
    return model, plan.place(model.graph)


def balanced_assignment(module: torch.nn.Module, problem: Problem) -> Assignment | None:
    """The split that Accelerate makes: layer by layer, for equal shares of memory.

    Whole layers stay together as transformers says for each model. None where it puts weights on
    the host or on disk.
    """
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    graph, devices = problem.graph, problem.topology.devices
    most = {i: int(device.memory_bytes) for i, device in enumerate(devices)}
    whole = list(getattr(module, "_no_split_modules", None) or [])
    memory = get_balanced_memory(module, dict(most), no_split_module_classes=whole)
    found = infer_auto_device_map(module, dict(memory), no_split_module_classes=whole)
    if not all(isinstance(place, int) for place in found.values()):
        return None
    assigned = [-1 if graph.is_input[v] else device_of(graph, v, found)
                for v in range(graph.num_vertices)]  # fmt: skip
    return Assignment(devices=np.array(assigned), placer="balanced")


def device_of(graph: Graph, v: int, devices: dict[str, Any]) -> int:
    """The device of the module that a piece is of, or of the one around it; else the first."""
    for path in modules_of(graph, v):
        while path:
            if path in devices:
                return int(devices[path])
            path = path.rpartition(".")[0]
    return int(devices.get("", 0))
