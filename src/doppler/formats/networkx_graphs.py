"""Graphs to and from networkx."""

from typing import Any

from doppler.errors import GraphError, MissingExtraError
from doppler.graph.builder import DEFAULT_DTYPE, build_graph
from doppler.graph.graph import Graph


def to_networkx(graph: Graph) -> Any:
    """A `networkx.MultiDiGraph`: nodes are vertex names, edges carry the tensor they read.

    Node attributes are the vertex columns, and `outputs` the (number, bytes, transfer_s) of each
    tensor it makes; an edge has `tensor`, such a number, and its `bytes`. Reads back equal.
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
            flops=float(graph.flops[v]),
            touched_bytes=float(graph.touched_bytes[v]),
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


def from_networkx(source: Any, *, name: str | None = None) -> Graph:
    """The Graph of any directed networkx graph.

    Every node is a vertex, named by `str(node)`. Node attributes are optional: `kind` (default
    "unknown"; "input" for inputs), `flops`, `touched_bytes`, `meta_op`, `role`, `dtype`,
    `exec_s`, `kernel`. Edges may have `bytes` (default 0) and `transfer_s`. The edges of a node
    carry the same tensor, and must then agree, unless `tensor` tells them apart.
    """
    nx = _networkx()
    if not isinstance(source, nx.Graph) or not source.is_directed():
        raise GraphError("only a directed networkx graph is a dataflow graph")
    nodes = list(source.nodes(data=True))
    number = {node: i for i, (node, _) in enumerate(nodes)}
    tensors: dict[tuple[int, Any], tuple[float, float | None]] = {}
    for node, data in nodes:
        for key, size, transfer in data.get("outputs", ()):
            tensors[number[node], key] = (size, transfer)
    edges = []
    for producer, reader, data in source.edges(data=True):
        key = (number[producer], data.get("tensor", 0))
        value = tensors.get(key, (data.get("bytes", 0.0), data.get("transfer_s")))
        given = (data.get("bytes", value[0]), data.get("transfer_s", value[1]))
        if tensors.setdefault(key, value) != given:
            raise GraphError(
                f"two edges of node `{producer}` differ in bytes or transfer_s",
                hint="give edges that carry different tensors different `tensor` attributes",
            )
        edges.append((key, number[reader]))
    keys = _in_order(list(tensors))
    position = {key: i for i, key in enumerate(keys)}
    return build_graph(
        name=name if name is not None else (source.graph.get("name") or "graph"),
        vertex_names=[str(node) for node, _ in nodes],
        **_node_columns([data for _, data in nodes]),
        tensor_producer=[key[0] for key in keys],
        tensor_bytes=[tensors[key][0] for key in keys],
        transfer_s=_all_or_none([tensors[key][1] for key in keys]),
        edge_tensor=[position[key] for key, _ in edges],
        edge_reader=[reader for _, reader in edges],
    )


def _node_columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    kernels = [row.get("kernel") for row in rows]
    return {
        "kinds": [str(row.get("kind", "unknown")) for row in rows],
        "flops": [row.get("flops", 0.0) for row in rows],
        "touched_bytes": [row.get("touched_bytes", 0.0) for row in rows],
        "meta_ops": [row.get("meta_op", "") for row in rows],
        "roles": [row.get("role", "") for row in rows],
        "dtypes": [row.get("dtype", DEFAULT_DTYPE) for row in rows],
        "kernels": kernels,
        "exec_s": _all_or_none([row.get("exec_s") for row in rows]),
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
