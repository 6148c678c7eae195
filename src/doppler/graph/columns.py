"""Columns of a graph: checked, and with errors that name the bad entry."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from doppler.base.arrays import RANGE, FloatArray, IntArray, frozen, in_range, integers, reals
from doppler.errors import GraphError
from doppler.graph.graph import Kernel
from doppler.graph.ops import InputKind, OpKind

ROLES = ("", "shard", "reduce")
DEFAULT_DTYPE = "float32"


def text_columns(
    size: int,
    names: Sequence[str] | None,
    kinds: Sequence[str],
    meta_ops: Sequence[str] | None,
    roles: Sequence[str] | None,
    dtypes: Sequence[str] | None,
) -> dict[str, tuple[str, ...]]:
    """The columns of text of all vertices, checked; defaults where they are left out."""
    text = {
        "name": tuple(f"v{i}" for i in range(size)) if names is None else tuple(names),
        "kind": tuple(kinds),
        "meta_op": ("",) * size if meta_ops is None else tuple(meta_ops),
        "role": ("",) * size if roles is None else tuple(roles),
        "dtype": (DEFAULT_DTYPE,) * size if dtypes is None else tuple(dtypes),
    }
    for column, values in text.items():
        _check_text(column, values, size)
    _check_unique(text["name"])
    if bad := next((r for r in text["role"] if r not in ROLES), None):
        raise GraphError(f"role `{bad}` is not one of `shard`, `reduce` or empty")
    return text


def input_kind_column(
    values: Sequence[str] | None, kinds: tuple[str, ...], names: tuple[str, ...]
) -> tuple[str, ...]:
    """The kind of each input, checked; "everywhere" where it is left out or empty."""
    default = str(InputKind.EVERYWHERE)
    if values is None:
        return tuple([default if kind == OpKind.INPUT else "" for kind in kinds])
    column = tuple(values)
    _check_text("input_kind", column, len(kinds))
    known = ("", *InputKind)
    for value, kind, name in zip(column, kinds, names, strict=True):
        if value not in known:
            raise GraphError(
                f"input `{name}` has the unknown kind `{value}`",
                hint=f"known: {', '.join(InputKind)}",
            )
        if value and kind != OpKind.INPUT:
            raise GraphError(
                f"vertex `{name}` has the input kind `{value}`, but is a `{kind}`",
                hint="leave it empty for vertices of other kinds than `input`",
            )
    inputs = [kind == OpKind.INPUT for kind in kinds]
    return tuple(
        [str(v or default) if is_input else "" for v, is_input in zip(column, inputs, strict=True)]
    )


def edge_columns(
    edge_tensor: Sequence[int] | IntArray,
    edge_reader: Sequence[int] | IntArray,
    num_tensors: int,
    num_vertices: int,
) -> tuple[IntArray, IntArray]:
    """The (E,) tensor and the (E,) reader of each edge, as given."""
    tensors = ids_of("edges.tensor", edge_tensor, num_tensors, "tensors")
    readers = ids_of("edges.reader", edge_reader, num_vertices, "vertices")
    if len(tensors) != len(readers):
        raise GraphError(f"{len(tensors)} edge tensors but {len(readers)} edge readers")
    return tensors, readers


def checked_name(name: Any) -> str:
    """The name of a graph, if it is a text."""
    if not isinstance(name, str):
        raise GraphError(f"the graph's name must be text, not {name!r}")
    return name


def checked_provenance(provenance: Any) -> dict[str, str]:
    """What a graph was made from, if it is texts by name."""
    found = {} if provenance is None else provenance
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and isinstance(value, str) for name, value in found.items()
    ):
        raise GraphError(f"the graph's provenance must be texts by name, not {provenance!r}")
    return dict(found)


def _check_text(column: str, values: tuple[Any, ...], size: int) -> None:
    if len(values) != size:
        raise GraphError(f"vertices.{column} has {len(values)} entries for {size} vertices")
    if not set(map(type, values)) <= {str, OpKind}:
        bad = next((i for i, v in enumerate(values) if not isinstance(v, str)), None)
        if bad is not None:
            raise GraphError(f"vertices.{column}[{bad}] must be text, not {values[bad]!r}")


def _check_unique(names: tuple[str, ...]) -> None:
    if len(set(names)) == len(names):
        return
    seen: dict[str, int] = {}
    for i, name in enumerate(names):
        if name in seen:
            raise GraphError(f"vertices {seen[name]} and {i} are both named `{name}`")
        seen[name] = i


def ids_of(column: str, values: Any, size: int, of: str) -> IntArray:
    """A column of ids below `size`."""
    ids = integers(values)
    if ids is None:
        raise GraphError(f"{column} must be a list of whole numbers")
    bad = np.flatnonzero((ids < 0) | (ids >= size))
    if len(bad):
        raise GraphError(
            f"{column}[{bad[0]}] is {ids[bad[0]]}, but there are {size} {of}",
            hint=f"ids run from 0 to {size - 1}" if size else None,
        )
    return ids


def sizes_of(column: str, values: Any, size: int, names: tuple[str, ...] = ()) -> FloatArray:
    """A column of sizes or seconds; zeros where it is left out."""
    if values is None:
        return frozen(np.zeros(size))
    array = reals(values)
    if array is None:
        raise GraphError(f"{column} must be a list of numbers")
    if len(array) != size:
        raise GraphError(f"{column} has {len(array)} entries, expected {size}")
    bad = np.flatnonzero(~in_range(array))
    if len(bad):
        where = f" (vertex `{names[bad[0]]}`)" if names else ""
        raise GraphError(
            f"{column}[{bad[0]}]{where} is {array[bad[0]]}",
            hint=f"sizes and seconds are 0, or {RANGE}",
        )
    return frozen(abs(array))  # -0.0 would change the digest


def exec_table(values: Any, size: int, names: tuple[str, ...]) -> FloatArray:
    """(V, 1) or (V, D): an entry is one number for all devices, or a list with one for each."""
    if isinstance(values, np.ndarray) and values.ndim == 2:
        values = values.tolist()
    if not isinstance(values, (list, tuple, np.ndarray)):
        raise GraphError("vertices.exec_s must be a list of numbers")
    if len(values) != size:
        raise GraphError(f"vertices.exec_s has {len(values)} entries, expected {size}")
    if not isinstance(values, np.ndarray):  # a row may be an array
        values = [v.tolist() if isinstance(v, np.ndarray) and v.ndim else v for v in values]
    widths = {len(v) for v in values if isinstance(v, (list, tuple))}
    if len(widths) > 1:
        raise GraphError(f"vertices.exec_s has lists of different lengths: {sorted(widths)}")
    width = widths.pop() if widths else 1
    if width == 0:
        raise GraphError("vertices.exec_s has an empty list")
    if width == 1 and not any(isinstance(v, (list, tuple)) for v in values):
        return frozen(sizes_of("vertices.exec_s", values, size, names).reshape(size, 1))
    flat = [x for v in values for x in (v if isinstance(v, (list, tuple)) else [v] * width)]
    repeated = tuple(n for n in names for _ in range(width))
    return frozen(sizes_of("vertices.exec_s", flat, size * width, repeated).reshape(size, width))


def check_edges(
    names: tuple[str, ...],
    producers: IntArray,
    edge_tensors: IntArray,
    edge_readers: IntArray,
    is_input: np.ndarray[Any, np.dtype[np.bool_]],
) -> None:
    """Raise if an input reads a tensor, or an edge is there twice."""
    reading = np.flatnonzero(is_input[edge_readers])
    if len(reading):
        vertex = edge_readers[reading[0]]
        raise GraphError(
            f"edge {reading[0]}: the input `{names[vertex]}` reads tensor "
            f"{edge_tensors[reading[0]]}",
            hint="inputs read nothing; give the vertex another kind",
        )
    pairs = edge_tensors * max(len(names), 1) + edge_readers
    _, first, count = np.unique(pairs, return_index=True, return_counts=True)
    if len(first) < len(pairs):
        i = int(first[np.argmax(count > 1)])
        raise GraphError(
            f"vertex `{names[edge_readers[i]]}` reads tensor {edge_tensors[i]} "
            f"(of `{names[producers[edge_tensors[i]]]}`) twice: a duplicate edge",
            hint="one edge per tensor and reader; a kernel may use the tensor in several slots",
        )


def checked_kernels(
    kernels: Sequence[Kernel | None],
    names: tuple[str, ...],
    reads: list[list[int]],
    num_outputs: IntArray,
) -> tuple[Kernel | None, ...]:
    """The kernels, if they fit what their vertices read and make; none if all are None."""
    if not any(kernels):
        return ()
    if len(kernels) != len(names):
        raise GraphError(f"vertices.kernel has {len(kernels)} entries for {len(names)} vertices")
    for i, kernel in enumerate(kernels):
        if kernel is None:
            continue
        if set(kernel.inputs) != set(reads[i]):
            raise GraphError(
                f"the kernel of `{names[i]}` has inputs {sorted(set(kernel.inputs))}, "
                f"but the vertex reads tensors {sorted(reads[i])}"
            )
        if not len(kernel.shapes) == len(kernel.dtypes) == num_outputs[i]:
            raise GraphError(
                f"the kernel of `{names[i]}` has {len(kernel.shapes)} shapes and "
                f"{len(kernel.dtypes)} dtypes for {num_outputs[i]} outputs"
            )
        _check_attributes(kernel, names[i])
    return tuple(kernels)


def _check_attributes(kernel: Kernel, name: str) -> None:
    try:
        json.dumps(dict(kernel.attributes), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise GraphError(
            f"the kernel of `{name}` has attributes that are not JSON: {error}"
        ) from None
