"""TorchModel: a PyTorch module as a graph, and all that is needed to run it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from doppler.base.notebook import html_table
from doppler.errors import ModelError
from doppler.graph.graph import Graph

if TYPE_CHECKING:
    from doppler.assignment import Assignment
    from doppler.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor by its name: an input of the graph, or one of its results."""

    name: str
    is_input: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TorchModel:
    """A module as a graph of pieces, its weights, and the structure of what it takes and gives.

    >>> import doppler as dp, torch
    >>> model = dp.from_torch(torch.nn.Linear(3, 2), (torch.ones(4, 3),))
    >>> model.graph.num_vertices, sorted(model.weights)
    (4, ['bias', 'weight'])
    >>> assignment = dp.place(model.graph, "cpu2", "critical-path")
    >>> model.run("cpu2", assignment, torch.ones(4, 3)).shape
    torch.Size([4, 2])
    """

    graph: Graph
    weights: Mapping[str, torch.Tensor]  # inputs that stay: parameters, buffers, what was folded
    arguments: Sequence[Named | Any]  # leaf by leaf: a tensor's name, or a constant
    results: Sequence[Named | Any]  # leaf by leaf: a tensor's name, or what is returned
    in_spec: TreeSpec = field(repr=False)  # of (args, kwargs)
    out_spec: TreeSpec = field(repr=False)
    mutated: tuple[str, ...] = ()  # weights that a run changes
    sources: tuple[torch.Tensor, ...] = ()  # of the module: with other values, import it again
    gradients: Mapping[str, Named | Any] = field(default_factory=dict)  # of a joint graph, by name

    def __repr__(self) -> str:
        return f"<TorchModel: {self.graph!r}, {len(self.weights)} weights>"

    def _repr_html_(self) -> str:
        rows = ((name, str(tuple(x.shape)), str(x.dtype)) for name, x in self.weights.items())
        return html_table(repr(self), ("weight", "shape", "dtype"), rows, count=len(self.weights))

    def inputs(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """The inputs of the graph by name: the weights, and these arguments of the module."""
        given = self.user_inputs(*args, **kwargs)
        empty = next((name for name, x in self.weights.items() if x.is_meta), None)
        if empty is not None:
            raise ModelError(
                f"the model's weight `{empty}` is on the meta device and has no values",
                hint="a model without values can be placed and simulated, not run",
            )
        return {**self.weights, **given}

    def user_inputs(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """The arguments of the module as inputs of the graph by name."""
        order = self.in_spec.children()[1].context  # names of keywords
        if set(order) == set(kwargs):
            kwargs = {name: kwargs[name] for name in order}
        return self.named_inputs(*tree_flatten((args, kwargs)))

    def named_inputs(self, leaves: Sequence[Any], spec: TreeSpec) -> dict[str, torch.Tensor]:
        """The flattened arguments of the module, in the order it was imported with, by name."""
        if spec != self.in_spec:
            raise ModelError(
                f"the model was imported for arguments of the structure {self.in_spec}, "
                f"and is given {spec}"
            )
        found = {}
        for i, (given, wanted) in enumerate(zip(leaves, self.arguments, strict=True)):
            if isinstance(wanted, Named):
                if not isinstance(given, torch.Tensor):
                    kind = type(given).__name__
                    raise ModelError(f"argument `{wanted.name}` is of type {kind}, not a tensor")
                found[wanted.name] = given
            elif type(given) is not type(wanted) or given != wanted:
                raise ModelError(
                    f"argument {i} is {given!r}, and the model was imported with {wanted!r}",
                    hint="only tensors may change: import the model again for other constants",
                )
        return found

    def outputs(
        self, results: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]
    ) -> Any:
        """What the module returns, in its own structure, from the graph's results and inputs."""
        leaves = [
            (inputs if each.is_input else results)[each.name] if isinstance(each, Named) else each
            for each in self.results
        ]
        return tree_unflatten(leaves, self.out_spec)

    def run(
        self,
        topology: "Topology | str | Path",
        assignment: "Assignment | str | Path",
        *args: Any,
        backend: str = "cpu",
        **kwargs: Any,
    ) -> Any:
        """What the module returns for these arguments, run once under an assignment."""
        from doppler.engine.engine import execute

        inputs = self.inputs(*args, **kwargs)
        found = execute(self.graph, topology, assignment, inputs=inputs, backend=backend)
        return self.outputs(found.outputs, inputs)
