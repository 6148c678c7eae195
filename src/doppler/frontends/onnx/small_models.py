"""Small models: some nodes of a model as a model of their own, in a canonical form.

Nodes that do the same to tensors of the same types give the same bytes, whatever they are called.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from doppler.frontends.onnx.protos import Source, load_onnx, reads_of, subgraphs

_MIN_IR_VERSION = 4  # from which on initializers need not be inputs


@dataclass(frozen=True, slots=True)
class SmallModel:
    """A model of some nodes, and the values that its inputs and outputs are."""

    proto: Any  # ModelProto
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def data(self) -> bytes:
        """The model as bytes."""
        found: bytes = self.proto.SerializeToString(deterministic=True)
        return found


class ModelWriter:
    """Writes small models of the nodes of one model."""

    def __init__(self, source: Source) -> None:
        self._opsets, self._ir_version = source.opsets, max(source.ir_version, _MIN_IR_VERSION)

    def write(
        self,
        nodes: Sequence[Any],
        type_of: Callable[[str], Any],
        *,
        embedded: Mapping[str, Any] | None = None,
        outputs: Iterable[str] | None = None,
    ) -> SmallModel:
        """The model of nodes; `type_of` gives the TypeProto of a value that comes from outside.

        `embedded` are TensorProtos of values that it holds itself. Without `outputs`, the types of
        all that the nodes make are left to be inferred.
        """
        onnx = load_onnx()
        constants, names = embedded or {}, _Names()
        graph = onnx.GraphProto(name="piece")
        made = {name for node in nodes for name in node.output}
        read = dict.fromkeys(name for node in nodes for name in reads_of(node) if name not in made)
        inputs = tuple(name for name in read if name not in constants)
        for name in inputs:
            graph.input.append(onnx.ValueInfoProto(name=names.of(name), type=type_of(name)))
        for name in read:
            if name in constants:
                tensor = graph.initializer.add()
                tensor.CopyFrom(constants[name])
                tensor.name = names.of(name)
        for node in nodes:
            names.rename_node(node, graph.node.add())
        wanted = tuple(outputs or ())
        for name in wanted:
            graph.output.append(onnx.ValueInfoProto(name=names.of(name)))
        domains = {"" if d == "ai.onnx" else d for node in nodes for d in _domains(node)}
        imports = [each for each in self._opsets if each.domain in domains | {"", "ai.onnx"}]
        imports.sort(key=lambda each: each.domain)
        model = onnx.ModelProto(ir_version=self._ir_version, graph=graph, opset_import=imports)
        return SmallModel(model, inputs, wanted)


class _Names:
    """Canonical names for values, by the order in which they are first met."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {"": ""}  # an input or output that is left out

    def of(self, name: str) -> str:
        """The canonical name of a value."""
        return self._of.setdefault(name, f"v{len(self._of)}")

    def rename_node(self, node: Any, target: Any) -> None:
        """Copy a node with canonical names, subgraphs included."""
        target.CopyFrom(node)
        for field in ("name", "doc_string", "metadata_props"):
            target.ClearField(field)
        del target.input[:], target.output[:]
        target.input.extend(map(self.of, node.input))
        for graph in subgraphs(target):
            self._rename_graph(graph)
        target.output.extend(map(self.of, node.output))

    def _rename_graph(self, graph: Any) -> None:
        for field in ("name", "doc_string", "value_info", "quantization_annotation"):
            graph.ClearField(field)
        graph.name = "body"
        for value in (*graph.input, *graph.initializer):
            value.name = self.of(value.name)
        nodes = list(graph.node)
        del graph.node[:]
        for node in nodes:
            self.rename_node(node, graph.node.add())
        for value in graph.output:
            value.name = self.of(value.name)


def _domains(node: Any) -> set[str]:
    inner = {d for graph in subgraphs(node) for each in graph.node for d in _domains(each)}
    return {node.domain} | inner
