"""ONNX models as graphs: checked, folded, coarsened into pieces, priced."""

import base64
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from doppler.base.files import source_name, title_of
from doppler.errors import ConfigError, DopplerError, FormatError
from doppler.frontends.coarsen import NONE, PIECES, check_coarsening, make_pieces
from doppler.frontends.model_files import grain_of, seen_from, sha256_of, why
from doppler.frontends.onnx.folding import Walked, walk
from doppler.frontends.onnx.onnx_model import OnnxModel
from doppler.frontends.onnx.op_costs import OnnxCosts, is_view
from doppler.frontends.onnx.protos import (
    UNKNOWN,
    OnnxLimits,
    Source,
    is_runnable,
    node_name,
    read_proto,
    read_source,
    reads_of,
)
from doppler.frontends.onnx.small_models import ModelWriter
from doppler.frontends.onnx.tensor_data import Weight, external_paths
from doppler.frontends.onnx.tensor_types import FLOATS, HANDED_OVER, TensorType
from doppler.graph.builder import GraphBuilder
from doppler.graph.graph import Kernel
from doppler.graph.ops import ONNX_PIECE, InputKind, OpKind

ONNX = "onnx"  # format, in the provenance of a graph
LIBRARY = "onnx and onnxruntime"

_log = logging.getLogger(__name__)


def from_onnx(
    path: str | Path,
    *,
    coarsen: str | int = PIECES,
    dims: Mapping[str, int] | None = None,
    folder: str | Path = "",
    limits: OnnxLimits | None = None,
) -> OnnxModel:
    """The model in an ONNX file as a graph, whose pieces onnxruntime runs.

    `dims` are sizes for symbolic dimensions. `coarsen` is as in `from_torch`. The graph refers to
    the file, as seen from a folder. Nothing in the file is trusted: it is checked by ONNX's own
    checker, and `limits` bound what is computed while it is read.

    >>> import doppler as dp, onnx
    >>> onnx.save(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     mlp (float[batch, 8] x, float[8, 4] w) => (float[batch, 4] y)
    ...     { h = MatMul(x, w)  y = Relu(h) }'''), "mlp.onnx")
    >>> dp.from_onnx("mlp.onnx", dims={"batch": 2}).graph.kinds
    ('input', 'input', 'matmul')
    """
    check_coarsening(coarsen)
    sizes = _checked_dims(dims or {})
    source = source_name(path)
    provenance = {"format": ONNX, "file": seen_from(folder, path), "sha256": digest_of(path)}
    provenance["coarsen"] = str(coarsen)
    if sizes:
        provenance["dims"] = json.dumps(sizes, sort_keys=True)
    try:
        found = read_source(path, sizes, limits or OnnxLimits())
        walked = walk(found, limits or OnnxLimits())
        return _Importer(found, walked, coarsen, GraphBuilder(title_of(path), provenance)).model()
    except DopplerError as error:
        raise type(error)(f"{source}: {error.message}", hint=error.hint) from error
    except Exception as error:  # a model that was not written by a library may cause anything
        raise FormatError(f"{source} holds no model that can be imported: {why(error)}") from error


def read_again(path: Path, provenance: Mapping[str, str]) -> OnnxModel:
    """The model in a file, as it was imported when a graph with this provenance was made."""
    try:
        dims = json.loads(provenance.get("dims", "{}"))
    except ValueError:
        dims = None
    if not isinstance(dims, dict):
        raise FormatError(f"the graph's provenance has the dims {provenance.get('dims')!r:.80}")
    return from_onnx(path, coarsen=grain_of(provenance), dims=dims)


def digest_of(path: str | Path) -> str:
    """The SHA-256 of a model's file; with external data, of that and of the files it is in."""
    first = sha256_of(path)
    files = external_paths(read_proto(path).graph.initializer, Path(path))
    if not files:
        return first
    parts = [first, *(f"{name}\0{sha256_of(file)}" for name, file in files)]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()


def _checked_dims(dims: Mapping[str, int]) -> dict[str, int]:
    for name, size in dims.items():
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size < 1 << 40:
            raise ConfigError(
                f"dimension `{name}` is {size!r}", hint="a size is a whole number of at least 1"
            )
    return dict(dims)


class _Importer:
    """One model that becomes a graph."""

    def __init__(
        self, source: Source, walked: Walked, coarsen: str | int, builder: GraphBuilder
    ) -> None:
        self._source, self._walked, self._coarsen = source, walked, coarsen
        self._builder, self._writer = builder, ModelWriter(source)
        self._costs = OnnxCosts(walked, source.opsets)
        self._tensors: dict[str, int] = {}  # by value
        self._stored: dict[str, Weight] = {}
        self._taken: set[str] = set()  # names of vertices
        self._missing: dict[str, None] = {}

    def model(self) -> OnnxModel:
        """The graph and what belongs to it."""
        walked, source = self._walked, self._source
        self._taken |= set(source.inputs) | set(walked.constants)
        made = {name for node in walked.nodes for name in node.output if name}
        self._check_results(made)
        results = [name for name in dict.fromkeys(source.outputs) if name in made]
        for nodes, outputs in self._pieces(results):
            self._add_piece(nodes, outputs, set(results))
        for name in source.inputs:  # what nobody reads is an input nonetheless
            self._tensor(name)
        if walked.guessed:
            first = sorted(walked.guessed)[0]
            _log.warning("the shapes of %d values are guessed, as %r", len(walked.guessed), first)
        others = {
            name: walked.constants.get(name, name) for name in source.outputs if name not in made
        }
        return OnnxModel(
            graph=self._builder.build(),
            stored=self._stored,
            arguments=tuple(source.inputs),
            results=others,
            missing=tuple(self._missing),
            guessed=tuple(sorted(walked.guessed)),
        )

    def _check_results(self, made: set[str]) -> None:
        for name in self._source.outputs:
            if name in made and self._walked.tensor(name) is None:
                raise FormatError(f"output `{name}` is no tensor of numbers, as results must be")

    def _pieces(self, results: Sequence[str]) -> list[tuple[list[Any], list[str]]]:
        """The nodes of each piece, and the values that leave it."""
        nodes, walked = self._walked.nodes, self._walked
        maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
        reads = [[name for name in reads_of(n) if name not in walked.constants] for n in nodes]
        if self._coarsen == NONE:
            heavy = [not is_view(node) for node in nodes]
        else:
            heavy = [self._costs.is_heavy(node) for node in nodes]
        found = make_pieces(
            reads,
            maker.get,
            heavy=heavy,
            kept=results,
            rank={name: i for i, name in enumerate(maker)}.__getitem__,
            pins=self._pins(maker, reads),
            coarsen=self._coarsen,
            flops=lambda i: self._costs.flops(nodes[i]),
        )
        return [([nodes[i] for i in members], outputs) for members, outputs in found]

    def _pins(self, maker: Mapping[str, int], reads: Sequence[Sequence[str]]) -> list[list[int]]:
        """Nodes that hand on what no edge can carry: sequences, strings, rare element types."""
        found: dict[str, list[int]] = {}
        for i, names in enumerate(reads):
            for name in names:
                kind = self._walked.tensor(name)
                if name in maker and (kind is None or kind.element not in HANDED_OVER):
                    found.setdefault(name, [maker[name]]).append(i)
        return list(found.values())

    def _add_piece(self, nodes: Sequence[Any], outputs: list[str], results: set[str]) -> None:
        walked, costs = self._walked, self._costs
        reads = {name for node in nodes for name in reads_of(node)}
        embedded = {n: walked.constants[n].proto() for n in reads if walked.is_embedded(n)}
        small = self._writer.write(nodes, self._declared, embedded=embedded, outputs=outputs)
        made = [walked.tensor(name) or TensorType(2, ()) for name in outputs]
        inputs = tuple(self._tensor(name) for name in small.inputs)
        flops = [costs.flops(node) for node in nodes]
        touched = [costs.touched_bytes(node) for node in nodes]
        head = max(range(len(nodes)), key=lambda i: (flops[i], touched[i], -i))
        attributes: dict[str, Any] = {"model": base64.b64encode(small.data()).decode()}
        attributes["results"] = [name if name in results else None for name in outputs]
        if lacking := self._lacking(nodes, small.inputs, outputs):
            attributes["missing"] = lacking
        name = self._vertex_name(node_name(nodes[head]))
        vertex = self._builder.vertex(
            name,
            costs.kind(nodes[head]),
            flops=sum(flops),
            touched_bytes=sum(touched),
            temporary_bytes=costs.temporary_bytes(nodes, outputs),
            meta_op=name,
            dtype=self._compute_dtype(nodes[head]),
            kernel=Kernel(
                ONNX_PIECE,
                inputs,
                tuple(kind.shape for kind in made),
                tuple(kind.dtype for kind in made),
                attributes,
            ),
        )
        for tensor in dict.fromkeys(inputs):
            self._builder.edge(tensor, vertex)
        for value, kind in zip(outputs, made, strict=True):
            self._tensors[value] = self._builder.tensor(vertex, kind.bytes)

    def _declared(self, name: str) -> Any:
        """The type of a value as a piece declares it: without a shape that is guessed."""
        if name not in self._walked.guessed:
            return self._walked.types[name]
        found = self._walked.tensor(name)
        return self._walked.types[name] if found is None else found.proto(with_shape=False)

    def _lacking(
        self, nodes: Sequence[Any], inputs: Sequence[str], outputs: Sequence[str]
    ) -> list[str]:
        """What a piece needs that cannot be had: operations, and dtypes of what it hands over."""
        found = dict.fromkeys(
            f"operation `{_domain(node)}.{node.op_type}`"
            for node in nodes
            if not is_runnable(node, self._source.opsets)
        )
        self._missing |= found
        for name in (*inputs, *outputs):
            kind = self._walked.tensor(name)
            if kind is not None and kind.element not in HANDED_OVER:
                found[f"dtype {kind.dtype}"] = None
        return list(found)

    def _tensor(self, name: str) -> int:
        """The tensor of a value; of one that no piece makes, that of a new input vertex."""
        if name not in self._tensors:
            weight = self._walked.constants.get(name)
            kind = self._walked.tensor(name) if weight is None else weight.type
            assert kind is not None
            block = {"block": [[0, size] for size in kind.shape]}
            kernel = Kernel("input", (), (kind.shape,), (kind.dtype,), block)
            stays = InputKind.STREAMED if weight is None else InputKind.RESIDENT
            options: Any = {"meta_op": name, "dtype": kind.dtype, "input_kind": stays}
            vertex = self._builder.vertex(name, OpKind.INPUT, kernel=kernel, **options)
            self._tensors[name] = self._builder.tensor(vertex, kind.bytes)
            if weight is not None:
                self._stored[name] = weight
        return self._tensors[name]

    def _vertex_name(self, name: str) -> str:
        while name in self._taken:
            name += "'"
        self._taken.add(name)
        return name

    def _compute_dtype(self, node: Any) -> str:
        found = [self._walked.tensor(name) for name in (*node.output, *node.input) if name]
        floats = [kind for kind in found if kind is not None and kind.element in FLOATS]
        return floats[0].dtype if floats else "float32"


def _domain(node: Any) -> str:
    """The domain of a node's operation as the file has it."""
    return "ai.onnx" if node.domain in ("", UNKNOWN) else str(node.domain)
