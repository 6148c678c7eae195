"""OnnxModel: an ONNX model as a graph, and all that is needed to run it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler.base.notebook import html_table
from doppler.errors import ModelError
from doppler.frontends.onnx.tensor_data import Weight
from doppler.graph.graph import Graph

if TYPE_CHECKING:
    from doppler.assignment import Assignment
    from doppler.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """A model as a graph of pieces that onnxruntime runs, and its weights.

    >>> import doppler as dp, onnx, torch
    >>> relu = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     relu (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }''')
    >>> onnx.save(relu, "relu.onnx")
    >>> model = dp.from_onnx("relu.onnx")
    >>> assignment = dp.place(model.graph, "cpu2", "critical-path")
    >>> model.run("cpu2", assignment, x=-torch.ones(2, 3))["y"].abs().max()
    tensor(0.)
    """

    graph: Graph
    stored: Mapping[str, Weight] = field(repr=False)  # initializers, and what was computed ahead
    arguments: tuple[str, ...]  # inputs that come with every run
    results: Mapping[str, str | Weight]  # outputs: an input's name or a constant, where it is one
    missing: tuple[str, ...] = ()  # operations that onnxruntime has not
    guessed: tuple[str, ...] = ()  # values whose shapes depend on values, and are guessed

    def __repr__(self) -> str:
        return f"<OnnxModel: {self.graph!r}, {len(self.stored)} weights>"

    def _repr_html_(self) -> str:
        rows = ((name, str(w.type.shape), w.type.dtype) for name, w in self.stored.items())
        return html_table(repr(self), ("weight", "shape", "dtype"), rows, count=len(self.stored))

    @property
    def weights(self) -> dict[str, Any]:
        """The weights as tensors of torch, read from the model's files."""
        return {name: weight.tensor() for name, weight in self.stored.items()}

    def inputs(self, **given: Any) -> dict[str, Any]:
        """The inputs of the graph by name: the weights, and these tensors or arrays."""
        if set(given) != set(self.arguments):
            wanted = ", ".join(self.arguments) or "none"
            raise ModelError(f"the model takes the inputs {wanted}", hint=f"given: {list(given)}")
        return {**self.weights, **given}

    def outputs(self, results: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What the model returns, by name, from the graph's results and inputs."""
        found = dict(results)
        for name, each in self.results.items():
            found[name] = each.tensor() if isinstance(each, Weight) else inputs[each]
        return found

    def run(
        self,
        topology: "Topology | str | Path",
        assignment: "Assignment | str | Path",
        *,
        backend: str = "cpu",
        **given: Any,
    ) -> dict[str, Any]:
        """What the model returns for these inputs, by name, run once under an assignment."""
        from doppler.engine.engine import execute

        inputs = self.inputs(**given)
        found = execute(self.graph, topology, assignment, inputs=inputs, backend=backend)
        return self.outputs(found.outputs, inputs)
