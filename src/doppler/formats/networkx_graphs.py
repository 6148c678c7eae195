"""Graphs to and from networkx."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from doppler.base.arrays import FloatArray, reals, unboxed
from doppler.base.text import visible
from doppler.errors import GraphError, MissingExtraError, UnknownNameError
from doppler.graph.builder import build_graph
from doppler.graph.columns import DEFAULT_DTYPE
from doppler.graph.graph import Graph


def to_networkx(graph: Graph) -> Any:
    """A `networkx.MultiDiGraph`: nodes are vertex names, edges carry the tensor they read.

    Node attributes are the vertex columns, and `outputs` the (number, bytes, transfer_s) of each
    tensor it makes; an edge has `tensor`, such a number, and its `bytes`. Reads back equal.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> dp.from_networkx(dp.to_networkx(graph)) == graph
    True
    """
    nx = _networkx()
    result = nx.MultiDiGraph(name=graph.name)
    names = graph.vertex_names
    for v in range(graph.num_vertices):
        tensors = graph.output_tensor[graph.output_ptr[v] : graph.output_ptr[v + 1]].tolist()
        transfer = [
            None if graph.transfer_s is None else float(graph.transfer_s[t]) for t in tensors
        ]
        sizes = [float(graph.tensor_bytes[t]) for t in tensors]
        result.add_node(
            names[v],
            kind=graph.kinds[v],
            input_kind=graph.input_kinds[v],
            flops=float(graph.flops[v]),
            touched_bytes=float(graph.touched_bytes[v]),
            temporary_bytes=float(graph.temporary_bytes[v]),
            meta_op=graph.meta_ops[v],
            role=graph.roles[v],
            dtype=graph.dtypes[v],
            exec_s=None if graph.exec_s is None else graph.exec_s[v].tolist(),
            kernel=graph.kernels[v] if graph.kernels else None,
            outputs=list(zip(tensors, sizes, transfer, strict=True)),
        )
    for tensor, reader in zip(graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True):
        producer = int(graph.tensor_producer[tensor])
        size = float(graph.tensor_bytes[tensor])
        result.add_edge(names[producer], names[reader], key=tensor, tensor=tensor, bytes=size)
    return result


class CostWarning(UserWarning):
    """A graph came without costs, though it has attributes that may be meant as such."""


def from_networkx(
    source: Any,
    *,
    name: str | None = None,
    kind: str | None = None,
    flops: str | None = None,
    touched_bytes: str | None = None,
    exec_s: str | None = None,
    dtype: str | None = None,
    bytes: str | None = None,  # noqa: A002
    transfer_s: str | None = None,
) -> Graph:
    """The Graph of any directed networkx graph.

    Every node is a vertex, named by `str(node)`. Node attributes are optional: `kind` (default
    "unknown"; "input" for inputs), `input_kind`, `flops`, `touched_bytes`, `temporary_bytes`,
    `meta_op`, `role`, `dtype`, `exec_s`, `kernel`. Edges may have `bytes` (default 0) and
    `transfer_s`. The edges of a node carry the same tensor, and must then agree, unless `tensor`
    tells them apart.

    Attributes of other names are read where an argument names them: `exec_s="cost"` takes seconds
    from the nodes' `cost`, and `bytes="weight"` sizes from the edges' `weight`. A `CostWarning`
    says so where nothing costs anything and there are numbers that were not read.

    >>> import doppler as dp, networkx as nx
    >>> tasks = nx.DiGraph([("load", "train", {"weight": 1e9})])
    >>> nx.set_node_attributes(tasks, {"load": 2.0, "train": 5.0}, "cost")
    >>> dp.from_networkx(tasks, exec_s="cost", bytes="weight").exec_s.tolist()
    [[2.0], [5.0]]
    """
    nx = _networkx()
    if not isinstance(source, nx.Graph) or not source.is_directed():
        raise GraphError("only a directed networkx graph is a dataflow graph")
    nodes, arcs = list(source.nodes(data=True)), list(source.edges(data=True))
    of_nodes = {"kind": kind, "flops": flops, "touched_bytes": touched_bytes}
    of_nodes |= {"exec_s": exec_s, "dtype": dtype}
    of_edges = {"bytes": bytes, "transfer_s": transfer_s}
    rows, edge_rows = [data for _, data in nodes], [data for _, _, data in arcs]
    _check_attributes("node", of_nodes, rows, "edge", edge_rows)
    _check_attributes("edge", of_edges, edge_rows, "node", rows)
    graph = build_graph(
        name=name if name is not None else (source.graph.get("name") or "graph"),
        vertex_names=[str(node) for node, _ in nodes],
        **_node_columns(rows, {column: named or column for column, named in of_nodes.items()}),
        **_tensor_columns(nodes, arcs, of_edges),
    )
    named = {column for column, value in (of_nodes | of_edges).items() if value is not None}
    if meant := _meant(graph, named, rows, edge_rows):
        arguments = ", ".join(f'{column}="{visible(name)}"' for column, name in meant.items())
        warnings.warn(
            f"{' and '.join(_FREE[column] for column in meant)} of graph `{visible(graph.name)}` "
            f"cost nothing; if attributes hold their costs, name these, such as "
            f"from_networkx(graph, {arguments})",
            CostWarning,
            stacklevel=2,
        )
    return graph


_READ = {"kind", "flops", "touched_bytes", "meta_op", "role", "dtype", "exec_s", "kernel"}
_READ |= {"outputs", "bytes", "transfer_s", "tensor", "input_kind", "temporary_bytes"}
_LIKELY = ("cost", "time", "duration", "runtime", "latency", "seconds", "flops", "size", "weight")
_FREE = {"exec_s": "the execs", "flops": "the execs"}
_FREE |= {"bytes": "the transfers", "transfer_s": "the transfers"}
_SECONDS = ("time", "duration", "latency", "delay", "seconds", "_s", "_ms", "_us")


def _check_attributes(
    what: str,
    named: Mapping[str, str | None],
    rows: list[dict[str, Any]],
    other: str,
    other_rows: list[dict[str, Any]],
) -> None:
    """Raise if an argument names an attribute that there is none of."""
    if not rows:
        return
    for column, name in named.items():
        if name is None or any(name in row for row in rows):
            continue
        if any(name in row for row in other_rows):
            raise GraphError(
                f"`{column}` is read from {what}s, and `{name}` is an attribute of {other}s"
            )
        known = {str(key) for row in rows for key in row}
        raise UnknownNameError(f"{what} attribute", str(name), known)


def _meant(
    graph: Graph, named: set[str], rows: list[dict[str, Any]], edge_rows: list[dict[str, Any]]
) -> dict[str, str]:
    """Arguments, and attributes that may be meant for them, where execs or transfers are free."""
    found: dict[str, str] = {}
    execs, moves = (graph.flops, graph.touched_bytes, graph.exec_s), graph.transfer_s
    node = edge = None
    if not named & {"exec_s", "flops", "touched_bytes"} and _all_zero(execs):
        node = _likeliest(rows)
    if not named & {"bytes", "transfer_s"} and _all_zero((graph.tensor_bytes, moves)):
        edge = _likeliest(edge_rows)
    if node is not None:
        found["flops" if "flop" in node.lower() else "exec_s"] = node
    if edge is not None:
        in_seconds = any(part in edge.lower() for part in _SECONDS)
        found["transfer_s" if in_seconds else "bytes"] = edge
    return found


def _all_zero(columns: Iterable[FloatArray | None]) -> bool:
    return not any(column is not None and column.any() for column in columns)


def _likeliest(rows: list[dict[str, Any]]) -> str | None:
    """The attribute most likely to be a cost: a number somewhere, and not read as what it is."""
    numeric = {
        key: None
        for row in rows
        for key, value in row.items()
        if isinstance(key, str) and key not in _READ and _is_positive(value)
    }

    def rank(name: str) -> int:
        words = [i for i, word in enumerate(_LIKELY) if word in name.lower()]
        return words[0] if words else len(_LIKELY)

    return min(numeric, key=rank, default=None)


def _is_positive(value: Any) -> bool:
    number = reals([value])
    return number is not None and bool(number[0] > 0)


def _tensor_columns(
    nodes: list[Any], arcs: list[Any], names: Mapping[str, str | None]
) -> dict[str, Any]:
    """The columns of tensors and edges; `names` are attributes for sizes and seconds."""
    size_name, seconds_name = names["bytes"] or "bytes", names["transfer_s"] or "transfer_s"
    number = {node: i for i, (node, _) in enumerate(nodes)}
    tensors: dict[tuple[int, Any], tuple[float, float | None]] = {}
    for node, data in nodes if set(names.values()) == {None} else ():
        for key, size, transfer in data.get("outputs", ()):
            tensors[number[node], key] = (size, transfer)
    edges = []
    for producer, reader, data in arcs:
        tensor = (number[producer], unboxed(data.get("tensor", 0)))
        value = tensors.get(tensor, (data.get(size_name, 0.0), data.get(seconds_name)))
        given = (data.get(size_name, value[0]), data.get(seconds_name, value[1]))
        if tensors.setdefault(tensor, value) != given:
            raise GraphError(
                f"two edges of node `{producer}` differ in {size_name} or {seconds_name}",
                hint="give edges that carry different tensors different `tensor` attributes",
            )
        edges.append((tensor, number[reader]))
    keys = _in_order(list(tensors))
    position = {key: i for i, key in enumerate(keys)}
    return {
        "tensor_producer": [key[0] for key in keys],
        "tensor_bytes": [tensors[key][0] for key in keys],
        "transfer_s": _all_or_none([tensors[key][1] for key in keys]),
        "edge_tensor": [position[key] for key, _ in edges],
        "edge_reader": [reader for _, reader in edges],
    }


def _node_columns(rows: list[dict[str, Any]], names: Mapping[str, str]) -> dict[str, Any]:
    kernels = [row.get("kernel") for row in rows]
    return {
        "kinds": [str(row.get(names["kind"], "unknown")) for row in rows],
        "flops": [row.get(names["flops"], 0.0) for row in rows],
        "touched_bytes": [row.get(names["touched_bytes"], 0.0) for row in rows],
        "input_kinds": [row.get("input_kind", "") for row in rows],
        "temporary_bytes": [row.get("temporary_bytes", 0.0) for row in rows],
        "meta_ops": [row.get("meta_op", "") for row in rows],
        "roles": [row.get("role", "") for row in rows],
        "dtypes": [row.get(names["dtype"], DEFAULT_DTYPE) for row in rows],
        "kernels": kernels,
        "exec_s": _all_or_none([row.get(names["exec_s"]) for row in rows]),
    }


def _all_or_none(values: list[Any]) -> list[Any] | None:
    if all(v is None for v in values):
        return None
    return [0.0 if v is None else v for v in values]


def _in_order(keys: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """By tensor number where those are unique in the whole graph, else as they came."""
    numbers = [tensor for _, tensor in keys]
    if all(type(n) is int for n in numbers) and len(set(numbers)) == len(numbers):
        return sorted(keys, key=lambda key: key[1])
    return keys


def _networkx() -> Any:
    try:
        import networkx
    except ImportError:
        raise MissingExtraError("networkx", "conversion to and from networkx") from None
    return networkx
