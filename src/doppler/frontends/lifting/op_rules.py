"""Rules of all operations that have one; see `doppler.frontends.lifting.rule`."""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from doppler.frontends.lifting.contraction_rules import (
    attention,
    convolution,
    einsum,
    linear,
    matmul,
    product,
)
from doppler.frontends.lifting.rule import Call, Dims, Rule, numbered, tensor_shape
from doppler.frontends.nodes import arguments, op_name, tensors_of


def rule_of(node: Node) -> Rule | None:
    """The rule of a call; None where there is none, so that it stays whole."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    shapes = [t.shape for n in (node, *node.all_input_nodes) for t in tensors_of(n)]
    if len(tensors_of(node)) != 1 or isinstance(node.meta["val"], (list, tuple)):
        return None
    if not all(type(n) is int and n > 0 for shape in shapes for n in shape):
        return None
    make = _RULES.get(op_name(node))
    if make is None and torch.Tag.pointwise in target.tags:
        make = _pointwise
    return make(Call(node, dict(arguments(node)))) if make else None


def _pointwise(call: Call) -> Rule | None:
    """Every element by itself, with broadcasting."""
    output = call.dims(call.out, numbered(len(call.out)))

    def aligned(value: Any) -> Dims:
        shape = tensor_shape(value)
        return call.dims(shape, numbered(len(shape), len(call.out) - len(shape)))

    found: dict[str, Any] = {}
    for name, value in call.given.items():
        if isinstance(value, Node) and tensors_of(value):
            found[name] = aligned(value)
    return call.rule(output, found)


def _like(call: Call) -> Rule | None:
    """Of the shape of one operand, in the dtype of another or with a value given."""
    first = next(iter(call.given))
    dims = call.dims(call.out, numbered(len(call.out)))
    found = {first: dims}
    if isinstance(other := call.given.get("other"), Node):
        shape = tensor_shape(other)
        axes = [f"other{i}" for i in range(len(shape))]
        found["other"] = call.dims(shape, axes)
        return call.rule(dims, found, whole=frozenset(axes) & call.sizes.keys())
    return call.rule(dims, found)


def _along(call: Call) -> Rule | None:
    """Along one dimension, or several, which stay whole."""
    (first, node), rank = next(iter(call.given.items())), len(call.out)
    dims = call.dims(call.out, numbered(rank))
    if tensor_shape(node) != call.out:
        return None
    given = call.given.get("dim", call.given.get("dims", -1))
    if given == []:
        return None
    along = {str(d % rank) for d in (given if isinstance(given, (list, tuple)) else [given])}
    return call.rule(dims, {first: dims}, whole=frozenset(along & call.sizes.keys()))


def _normalized(call: Call) -> Rule | None:
    """Layer and RMS norm: the last dimensions are whole."""
    rank, last = len(call.out), len(call.given["normalized_shape"])
    axes = numbered(rank)
    dims = call.dims(call.out, axes)
    found = {"input": dims, "weight": dims[rank - last :], "bias": dims[rank - last :]}
    whole = frozenset(axes[rank - last :]) & call.sizes.keys()
    return call.rule(dims, found, whole=whole)


FOLDS = {
    "sum": "add",
    "mean": "mean",
    "amax": "maximum",
    "amin": "minimum",
    "max": "maximum",
    "min": "minimum",
    "prod": "mul",
    "any": "logical_or",
    "all": "logical_and",
}


def _reduction(call: Call) -> Rule | None:
    """A reduction; those that do not fold need all that they reduce."""
    if "other" in call.given:  # of two tensors, element by element
        return _pointwise(call)
    first = next(iter(call.given))
    shape = call.shape(first)
    rank = len(shape)
    given = call.given.get("dim")
    if given is None or given == []:
        given = range(rank)
    gone = {d % rank for d in (given if isinstance(given, (list, tuple, range)) else [given])}
    axes = numbered(rank)
    dims = call.dims(shape, axes)
    kept = bool(call.given.get("keepdim"))
    output = tuple(() if d in gone else dims[d] for d in range(rank) if kept or d not in gone)
    fold = FOLDS.get(op_name(call.node), "")
    whole = frozenset() if fold else frozenset(axes[d] for d in gone) & call.sizes.keys()
    return call.rule(output, {first: dims}, whole=whole, fold=fold)


def _embedding(call: Call) -> Rule | None:
    indices, table = call.shape("indices"), call.shape("weight")
    rows = numbered(len(indices))
    found = {
        "weight": call.dims(table, ["rows", "columns"]),
        "indices": call.dims(indices, rows),
    }
    output = call.dims(call.out, [*rows, "columns"])
    return call.rule(output, found, whole=frozenset({"rows"}) & call.sizes.keys())


def _index_select(call: Call) -> Rule | None:
    shape, dim = call.shape("self"), call.given["dim"]
    axes = numbered(len(shape))
    dim %= len(shape)
    source = [f"{a}.rows" if d == dim else a for d, a in enumerate(axes)]
    found = {
        "self": call.dims(shape, source),
        "index": call.dims(call.shape("index"), [axes[dim]] * len(call.shape("index"))),
    }
    whole = frozenset({source[dim]}) & call.sizes.keys()
    return call.rule(call.dims(call.out, axes), found, whole=whole)


def _index(call: Call) -> Rule | None:
    """One dimension by a tensor of positions: `x[:, i]`."""
    shape, given = call.shape("self"), call.given["indices"]
    at = [d for d, each in enumerate(given) if each is not None]
    if len(at) != 1 or tensors_of(given[at[0]])[0].dtype in (torch.bool, torch.uint8):
        return None
    (dim,), positions = at, tensor_shape(given[at[0]])
    axes = numbered(len(shape))
    inner = [f"i{d}" for d in range(len(positions))]
    source = [f"{a}.rows" if d == dim else a for d, a in enumerate(axes)]
    indices: list[Dims | None] = [None] * len(given)
    indices[dim] = call.dims(positions, inner)
    found = {"self": call.dims(shape, source), "indices": indices}
    output = call.dims(call.out, [*axes[:dim], *inner, *axes[dim + 1 :]])
    return call.rule(output, found, whole=frozenset({source[dim]}) & call.sizes.keys())


def _gather(call: Call) -> Rule | None:
    shape, index, dim = call.shape("self"), call.shape("index"), call.given["dim"]
    dim %= max(len(shape), 1)
    if len(shape) != len(index) or not shape:
        return None
    axes = numbered(len(shape))
    same = [n == m and d != dim for d, (n, m) in enumerate(zip(shape, index, strict=True))]
    source = [a if same[d] else f"{a}.rows" for d, a in enumerate(axes)]
    found = {"self": call.dims(shape, source), "index": call.dims(index, axes)}
    whole = {source[d] for d in range(len(shape)) if not same[d]}
    whole |= {axes[d] for d in range(len(shape)) if not same[d] and d != dim}
    return call.rule(call.dims(call.out, axes), found, whole=frozenset(whole) & call.sizes.keys())


def _cat(call: Call) -> Rule | None:
    """cat: the dimension along which tensors follow each other is whole."""
    nodes, rank = call.given["tensors"], len(call.out)
    dim = call.given["dim"] % rank
    axes, found, own = numbered(rank), [], {str(dim)}
    for i, node in enumerate(nodes):
        shape = tensor_shape(node)
        if len(shape) != rank:
            return None
        names = [f"{a}.{i}" if d == dim else a for d, a in enumerate(axes)]
        own.add(names[dim])
        found.append(call.dims(shape, names))
    output = call.dims(call.out, axes)
    return call.rule(output, {"tensors": found}, whole=frozenset(own) & call.sizes.keys())


def _stack(call: Call) -> Rule | None:
    """stack: tensors of one shape along a new dimension, which is whole."""
    nodes, rank = call.given["tensors"], len(call.out)
    dim = call.given["dim"] % rank
    axes = numbered(rank)
    output = call.dims(call.out, axes)
    own = [output[:dim] + output[dim + 1 :]] * len(nodes)
    return call.rule(output, {"tensors": own}, whole=frozenset({axes[dim]}) & call.sizes.keys())


def _pool(call: Call) -> Rule | None:
    """Pooling over as many of the last dimensions as the name says, which are whole."""
    (first, node), rank = next(iter(call.given.items())), len(call.out)
    last = int(op_name(call.node).removesuffix("d")[-1])
    axes = numbered(rank)
    inner = [f"{a}.in" if d >= rank - last else a for d, a in enumerate(axes)]
    dims, output = call.dims(tensor_shape(node), inner), call.dims(call.out, axes)
    whole = frozenset([*axes[rank - last :], *inner[rank - last :]]) & call.sizes.keys()
    return call.rule(output, {first: dims}, whole=whole)


def _slice(call: Call) -> Rule | None:
    """Part of a dimension, or a dimension with something added: whole before and after."""
    (first, node), rank = next(iter(call.given.items())), len(call.out)
    shape = tensor_shape(node)
    if len(shape) != rank:
        return None
    axes = numbered(rank)
    pads = len(call.given.get("pad", ())) // 2
    changed = [d for d in range(rank) if shape[d] != call.out[d] or d >= rank - pads]
    source = [f"{a}.rows" if d in changed else a for d, a in enumerate(axes)]
    whole = {name for d in changed for name in (axes[d], source[d])}
    if not changed:
        whole = set(axes)
    dims = call.dims(shape, source)
    output = call.dims(call.out, axes)
    return call.rule(output, {first: dims}, whole=frozenset(whole) & call.sizes.keys())


_RULES: dict[str, Callable[[Call], Rule | None]] = {
    **dict.fromkeys(("to", "_to_copy", "type_as", "dropout"), _like),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like"), _like),
    "floor_divide": _pointwise,
    **dict.fromkeys(
        ("softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax"), _along
    ),
    **dict.fromkeys(("cumsum", "cumprod", "flip", "roll"), _along),
    **dict.fromkeys(("layer_norm", "rms_norm"), _normalized),
    **dict.fromkeys((*FOLDS, "var", "std", "argmax", "argmin", "logsumexp"), _reduction),
    **dict.fromkeys(("slice", "constant_pad_nd", "pad"), _slice),
    **{f"{kind}_pool{n}d": _pool for n in (1, 2, 3) for kind in ("max", "avg", "adaptive_avg")},
    "stack": _stack,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), convolution),
    "linear": linear,
    "mm": product("self", "mat2"),
    "bmm": product("self", "mat2"),
    "addmm": product("mat1", "mat2", "self", "aten.mm.default"),
    "baddbmm": product("batch1", "batch2", "self", "aten.bmm.default"),
    "matmul": matmul,
    "einsum": einsum,
    "scaled_dot_product_attention": attention,
    "embedding": _embedding,
    "index_select": _index_select,
    "index": _index,
    "gather": _gather,
    "cat": _cat,
}
