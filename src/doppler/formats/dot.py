"""Graphviz's DOT: directed graphs whose attributes are costs.

| of a node | |
|---|---|
| `exec_s`, `cost`, `weight`, `time`, `runtime` | seconds; several numbers: one for each device |
| `flops`, `size` | floating-point operations |
| `bytes`, `temporary_bytes`, `dtype`, `meta_op`, `role`, `kind`, `input_kind` | as in graph files |
| `label` | seconds, where it is a number and nothing else gives them; else the kind |

| of an edge | |
|---|---|
| `bytes`, `size` | size of the tensor that is read |
| `transfer_s`, `cost`, `weight`, `time`, `label` | seconds between any two devices |
| `tensor` | tells tensors of one node apart |

Edges of one node with the same size and seconds read the same tensor, unless `tensor` says
otherwise. Attributes that mean something else, such as colours, are not read. When a graph is
written, kernels and tensors that nobody reads are left out.
"""

import re
from collections.abc import Mapping
from typing import Any

from doppler.errors import FormatError, GraphError
from doppler.formats.costs_of import number_text
from doppler.formats.dot_parser import DotEdge, DotNode, parse_dot
from doppler.formats.registry import GraphFormat
from doppler.graph.builder import build_graph
from doppler.graph.columns import DEFAULT_DTYPE
from doppler.graph.graph import Graph
from doppler.graph.ops import InputKind, OpKind

_SECONDS = ("exec_s", "cost", "weight", "time", "runtime")
_MOVES = ("transfer_s", "cost", "weight", "time")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_COMMENT = re.compile(r"\s*(?:(?://|#)[^\n]*(?:\n|$)\s*|/\*.*?\*/\s*)*", re.DOTALL)
_HEAD = re.compile(r"(?:strict\s+)?(?:di)?graph\b[^{\[;,]*\{", re.IGNORECASE)


def dot_graph(text: str, source: str, name: str) -> Graph:
    """The graph in a text of DOT."""
    parsed = parse_dot(text, source)
    number = {node.name: i for i, node in enumerate(parsed.nodes)}
    try:
        return build_graph(
            name=parsed.name or name,
            vertex_names=list(number),
            **_node_columns(parsed.nodes, source),
            **_tensor_columns(parsed.edges, number, source),
        )
    except GraphError as error:
        raise GraphError(f"{source}: {error.message}", hint=error.hint) from None


def _node_columns(nodes: list[DotNode], source: str) -> dict[str, Any]:
    seconds = [_seconds(node, source) for node in nodes]
    kinds = [_kind(node.attributes) for node in nodes]
    is_timed = any(each is not None for each in seconds)
    for node, each, kind in zip(nodes, seconds, kinds, strict=True):
        if is_timed and each is None and kind != OpKind.INPUT:
            raise FormatError(
                f"{source}, line {node.line}: node `{node.name[:80]}` has no seconds, others have",
                hint=f"give all nodes one of {', '.join(_SECONDS)}",
            )
    return {
        "kinds": kinds,
        "exec_s": [0.0 if each is None else each for each in seconds] if is_timed else None,
        "flops": [_first(node, ("flops", "size"), source) or 0.0 for node in nodes],
        "touched_bytes": [_first(node, ("bytes",), source) or 0.0 for node in nodes],
        "temporary_bytes": [_first(node, ("temporary_bytes",), source) or 0.0 for node in nodes],
        "input_kinds": [_input_kind(node, kind) for node, kind in zip(nodes, kinds, strict=True)],
        "meta_ops": [node.attributes.get("meta_op", "") for node in nodes],
        "roles": [node.attributes.get("role", "") for node in nodes],
        "dtypes": [node.attributes.get("dtype", DEFAULT_DTYPE) for node in nodes],
    }


def _tensor_columns(edges: list[DotEdge], number: Mapping[str, int], source: str) -> dict[str, Any]:
    tensors: dict[Any, int] = {}
    sizes: list[float] = []
    moves: list[float | None] = []
    producers: list[int] = []
    reads: dict[tuple[int, int], None] = {}
    for edge in edges:
        size = _first(edge, ("bytes", "size"), source) or 0.0
        seconds = _first(edge, _MOVES, source)
        if seconds is None and _is_number(edge.attributes.get("label", "")):
            seconds = _first(edge, ("label",), source)
        named = edge.attributes.get("tensor")
        maker = number[edge.source]
        key = (maker, named) if named is not None else (maker, size, seconds)
        if key not in tensors:
            tensors[key] = len(producers)
            producers.append(maker)
            sizes.append(size)
            moves.append(seconds)
        t = tensors[key]
        if (sizes[t], moves[t]) != (size, seconds):
            raise FormatError(
                f"{source}, line {edge.line}: edges of tensor `{str(named)[:40]}` of "
                f"`{edge.source[:80]}` differ in size or seconds"
            )
        reads[t, number[edge.target]] = None
    is_timed = any(each is not None for each in moves)
    return {
        "tensor_producer": producers,
        "tensor_bytes": sizes,
        "transfer_s": [each or 0.0 for each in moves] if is_timed else None,
        "edge_tensor": [t for t, _ in reads],
        "edge_reader": [reader for _, reader in reads],
    }


def _seconds(node: DotNode, source: str) -> Any:
    """Seconds of a node: one number, or a list of several."""
    for name in _SECONDS:
        if name in node.attributes:
            words = node.attributes[name].split() or [""]
            numbers = [_number(word, name, node, source) for word in words]
            return numbers[0] if len(numbers) == 1 else numbers
    label = node.attributes.get("label", "")
    return _number(label, "label", node, source) if _is_number(label) else None


def _kind(attributes: Mapping[str, str]) -> str:
    label = attributes.get("label", "")
    plain = label if label and not _is_number(label) and "\\" not in label else "unknown"
    return attributes.get("kind", plain)


def _input_kind(node: DotNode, kind: str) -> str:
    default = str(InputKind.EVERYWHERE) if kind == OpKind.INPUT else ""
    return node.attributes.get("input_kind", default)


def _first(item: DotNode | DotEdge, names: tuple[str, ...], source: str) -> float | None:
    """The number in the first of some attributes that there is."""
    for name in names:
        if name in item.attributes:
            return _number(item.attributes[name], name, item, source)
    return None


def _number(text: str, name: str, item: DotNode | DotEdge, source: str) -> float:
    if not _is_number(text):
        raise FormatError(
            f"{source}, line {item.line}: `{name}` of {item.described()} is `{text[:40]}`, "
            "no number"
        )
    return float(text)


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text.strip()) is not None


def dot_text(graph: Graph) -> str:
    """A graph as a text of DOT."""
    lines = [f"digraph {_quoted(graph.name)} {{"]
    for v, name in enumerate(graph.vertex_names):
        shown: dict[str, str] = {"kind": _quoted(graph.kinds[v])}
        if graph.input_kinds[v]:
            shown["input_kind"] = _quoted(graph.input_kinds[v])
        columns = {"flops": graph.flops, "bytes": graph.touched_bytes}
        columns["temporary_bytes"] = graph.temporary_bytes
        shown |= {key: _numeral(float(x[v])) for key, x in columns.items() if x[v]}
        texts = {"meta_op": graph.meta_ops[v], "role": graph.roles[v]}
        texts["dtype"] = "" if graph.dtypes[v] == DEFAULT_DTYPE else graph.dtypes[v]
        shown |= {key: _quoted(text) for key, text in texts.items() if text}
        if graph.exec_s is not None:
            shown["exec_s"] = _quoted(" ".join(map(number_text, graph.exec_s[v].tolist())))
        lines.append(f"  {_quoted(name)} [{_listed(shown)}]")
    names, makers = graph.vertex_names, graph.tensor_producer.tolist()
    for t, reader in zip(graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True):
        shown = {"bytes": _numeral(float(graph.tensor_bytes[t]))}
        if graph.transfer_s is not None:
            shown["transfer_s"] = _numeral(float(graph.transfer_s[t]))
        if graph.output_ptr[makers[t] + 1] - graph.output_ptr[makers[t]] > 1:
            shown["tensor"] = str(t)
        lines.append(
            f"  {_quoted(names[makers[t]])} -> {_quoted(names[reader])} [{_listed(shown)}]"
        )
    return "\n".join([*lines, "}", ""])


def _listed(shown: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in shown.items())


def _quoted(text: str) -> str:
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{plain}"'


def _numeral(value: float) -> str:
    """A number, in quotes where DOT would not take it for one word."""
    text = number_text(value)
    return text if re.fullmatch(r"[0-9.]+", text) else _quoted(text)


def _matches(text: str) -> bool:
    begin = _COMMENT.match(text)
    return begin is not None and _HEAD.match(text, begin.end()) is not None


FORMAT = GraphFormat(
    name="dot",
    description="Graphviz's DOT, with costs as attributes",
    matches=_matches,
    read=dot_graph,
    write=dot_text,
)
