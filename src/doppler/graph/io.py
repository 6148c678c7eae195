"""Graphs as versioned, columnar JSON."""

from pathlib import Path
from typing import Any

from doppler.base.arrays import plain
from doppler.base.files import check_header, check_keys, parse_json, to_json
from doppler.base.writing import write_text
from doppler.errors import FormatError, GraphError
from doppler.graph.builder import build_graph
from doppler.graph.columns import DEFAULT_DTYPE
from doppler.graph.graph import Graph, Kernel
from doppler.graph.ops import InputKind

FORMAT, VERSION = "doppler-graph", 1

_VERTEX_COLUMNS = {  # JSON column: field of Graph
    "name": "vertex_names",
    "kind": "kinds",
    "input_kind": "input_kinds",
    "flops": "flops",
    "bytes": "touched_bytes",
    "temporary_bytes": "temporary_bytes",
    "meta_op": "meta_ops",
    "role": "roles",
    "dtype": "dtypes",
    "exec_s": "exec_s",
}
_TENSOR_COLUMNS = {
    "producer": "tensor_producer",
    "bytes": "tensor_bytes",
    "transfer_s": "transfer_s",
}
_EDGE_COLUMNS = {"tensor": "edge_tensor", "reader": "edge_reader"}


def write_graph(graph: Graph, path: str | Path, *, force: bool = False) -> None:
    """Write a `doppler-graph` file; over a file of another kind only with `force`.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> dp.write_graph(graph, "graph.json")
    >>> dp.read_graph("graph.json") == graph
    True
    """
    write_text(path, graph_to_json(graph), kind=FORMAT, force=force)


def graph_from_json(text: str, *, source: str = "graph") -> Graph:
    """The graph in a JSON text; `source` names the text in errors."""
    document = parse_json(text, source)
    check_header(document, format_name=FORMAT, version=VERSION, source=source)
    check_keys(
        document,
        required=("format", "version", "vertices", "tensors", "edges"),
        optional=("name", "provenance"),
        source=source,
    )
    columns = _columns(
        document["vertices"], _VERTEX_COLUMNS, ("kind",), f"{source}: vertices", ("kernel",)
    )
    columns |= _columns(
        document["tensors"], _TENSOR_COLUMNS, ("producer", "bytes"), f"{source}: tensors"
    )
    columns |= _columns(document["edges"], _EDGE_COLUMNS, ("tensor", "reader"), f"{source}: edges")
    kernels = document["vertices"].get("kernel", [])
    if not isinstance(kernels, list):
        raise FormatError(f"{source}: vertices.kernel must be a list")
    columns["kernels"] = [
        _kernel(k, f"{source}: vertices.kernel[{i}]") for i, k in enumerate(kernels)
    ]
    try:
        return build_graph(
            name=document.get("name", "graph"), provenance=document.get("provenance"), **columns
        )
    except GraphError as error:
        raise GraphError(f"{source}: {error.message}", hint=error.hint) from None


def graph_to_json(graph: Graph) -> str:
    """The JSON text of a graph; columns that hold nothing but defaults are left out."""
    vertices: dict[str, Any] = {"name": list(graph.vertex_names), "kind": list(graph.kinds)}
    vertices |= {"flops": plain(graph.flops), "bytes": plain(graph.touched_bytes)}
    if any(k not in ("", InputKind.EVERYWHERE) for k in graph.input_kinds):
        vertices["input_kind"] = list(graph.input_kinds)
    if graph.temporary_bytes.any():
        vertices["temporary_bytes"] = plain(graph.temporary_bytes)
    defaults = {"meta_op": "", "role": "", "dtype": DEFAULT_DTYPE}
    for column, default in defaults.items():
        values = getattr(graph, _VERTEX_COLUMNS[column])
        if any(v != default for v in values):
            vertices[column] = list(values)
    if graph.exec_s is not None:
        one_for_all = graph.exec_s.shape[1] == 1
        vertices["exec_s"] = plain(graph.exec_s[:, 0] if one_for_all else graph.exec_s)
    if graph.kernels:
        vertices["kernel"] = [None if k is None else _kernel_to_json(k) for k in graph.kernels]
    tensors = {"producer": plain(graph.tensor_producer), "bytes": plain(graph.tensor_bytes)}
    if graph.transfer_s is not None:
        tensors["transfer_s"] = plain(graph.transfer_s)
    edges = {"tensor": plain(graph.edge_tensor), "reader": plain(graph.edge_reader)}
    provenance = {"provenance": dict(graph.provenance)} if graph.provenance else {}
    return to_json(
        {"format": FORMAT, "version": VERSION, "name": graph.name}
        | provenance
        | {"vertices": vertices, "tensors": tensors, "edges": edges}
    )


def _columns(
    table: Any,
    names: dict[str, str],
    required: tuple[str, ...],
    source: str,
    also: tuple[str, ...] = (),
) -> dict[str, list[Any]]:
    optional = tuple(n for n in (*names, *also) if n not in required)
    check_keys(table, required=required, optional=optional, source=source)
    for column in names:
        if column in table and not isinstance(table[column], list):
            raise FormatError(f"{source}.{column} must be a list")
    return {field: table[column] for column, field in names.items() if column in table}


def _kernel_to_json(kernel: Kernel) -> dict[str, Any]:
    row: dict[str, Any] = {"op": kernel.op, "inputs": list(kernel.inputs)}
    row |= {"shapes": [list(s) for s in kernel.shapes], "dtypes": list(kernel.dtypes)}
    return row | ({"attributes": dict(kernel.attributes)} if kernel.attributes else {})


def _kernel(row: Any, source: str) -> Kernel | None:
    if row is None:
        return None
    check_keys(
        row,
        required=("op", "inputs", "shapes", "dtypes"),
        optional=("attributes",),
        source=source,
    )
    op, attributes = row["op"], row.get("attributes", {})
    lists = (row["inputs"], row["shapes"], row["dtypes"])
    if not (
        isinstance(op, str)
        and isinstance(attributes, dict)
        and all(isinstance(v, list) for v in lists)
        and all(type(t) is int for t in row["inputs"])
        and all(
            isinstance(s, list) and all(type(n) is int and 0 <= n < 2**63 for n in s)
            for s in row["shapes"]
        )
        and all(isinstance(d, str) for d in row["dtypes"])
    ):
        raise FormatError(
            f"{source} is malformed",
            hint="`op` text, `inputs` tensor ids, `shapes` lists of sizes, `dtypes` texts",
        )
    return Kernel(
        op=op,
        inputs=tuple(row["inputs"]),
        shapes=tuple(tuple(s) for s in row["shapes"]),
        dtypes=tuple(row["dtypes"]),
        attributes=attributes,
    )
