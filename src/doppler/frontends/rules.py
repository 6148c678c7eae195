"""Rules: along which axes an ATen operation can be cut, and what its shards read then.

An operation joins axes, as in `doppler.programs.program`: those of its output, then those that it
aggregates over. A rule names them, and says which of them every dimension of an operand lies on. A
shard is the same operation on blocks of its operands. An axis is `whole` where a shard would have
to know its position, or needs all of it: a normalised axis, the rows of a table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from doppler.frontends.nodes import arguments, op_name, tensors_of

Dims = tuple[tuple[str, ...], ...]  # axes that each dimension is the product of, outermost first


@dataclass(frozen=True, slots=True)
class Rule:
    """The join axes of one operation; dimensions of size 1 lie on none."""

    sizes: Mapping[str, int]  # of the axes
    output: Dims
    operands: tuple[Dims, ...]  # of every tensor among the arguments, in order
    whole: frozenset[str] = frozenset()  # axes that are never cut
    fold: str = ""  # what puts partial results together, where the output lacks a cut axis
    # What computes all partial results but the first, which takes the bias: a call, and the names
    # of its arguments.
    rest: tuple[str, tuple[str, ...]] | None = None

    def aggregated(self) -> list[str]:
        """The axes that the output does not have."""
        kept = {axis for dim in self.output for axis in dim}
        return [axis for axis in self.sizes if axis not in kept]


@dataclass(slots=True)
class Call:
    """A call that a rule is made for."""

    node: Node
    given: Mapping[str, Any]  # arguments by name, with defaults
    sizes: dict[str, int] = field(default_factory=dict)  # of axes named so far

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that is an argument."""
        return _shape(self.given[name])

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the output."""
        return _shape(self.node)

    def dims(self, shape: Sequence[int], axes: Sequence[str]) -> Dims:
        """The axes of dimensions of these sizes, one for each that is longer than 1."""
        for size, axis in zip(shape, axes, strict=True):
            if size > 1:
                self.sizes[axis] = size
        return tuple((axis,) if n > 1 else () for n, axis in zip(shape, axes, strict=True))

    def rule(self, output: Dims, operands: Mapping[str, Any], **options: Any) -> Rule | None:
        """The rule with these dimensions of arguments, by name; a list for a list of tensors."""
        found: list[Dims] = []
        for name, value in self.given.items():
            nodes = [value] if isinstance(value, Node) else value
            if not isinstance(nodes, (list, tuple)):
                continue
            dims = operands.get(name)
            rows = [dims] if isinstance(value, Node) else dims or [None] * len(nodes)
            for node, row in zip(nodes, rows, strict=True):
                if isinstance(node, Node) and tensors_of(node):
                    if row is None:
                        return None
                    found.append(row)
        kept = [axis for dim in output for axis in dim]
        order = dict.fromkeys([*kept, *self.sizes])
        return Rule({a: self.sizes[a] for a in order}, output, tuple(found), **options)


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


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(tensors_of(node)[0].shape)


def _numbered(count: int, begin: int = 0) -> list[str]:
    return [str(i) for i in range(begin, begin + count)]


def _pointwise(call: Call) -> Rule | None:
    """Every element by itself, with broadcasting."""
    output = call.dims(call.out, _numbered(len(call.out)))

    def aligned(value: Any) -> Dims:
        shape = _shape(value)
        return call.dims(shape, _numbered(len(shape), len(call.out) - len(shape)))

    found: dict[str, Any] = {}
    for name, value in call.given.items():
        if isinstance(value, Node) and tensors_of(value):
            found[name] = aligned(value)
    return call.rule(output, found)


def _like(call: Call) -> Rule | None:
    """Of the shape of one operand, in the dtype of another or with a value given."""
    first = next(iter(call.given))
    dims = call.dims(call.out, _numbered(len(call.out)))
    found = {first: dims}
    if isinstance(other := call.given.get("other"), Node):
        shape = _shape(other)
        axes = [f"other{i}" for i in range(len(shape))]
        found["other"] = call.dims(shape, axes)
        return call.rule(dims, found, whole=frozenset(axes) & call.sizes.keys())
    return call.rule(dims, found)


def _along(call: Call) -> Rule | None:
    """Along one dimension, or several, which stay whole."""
    (first, node), rank = next(iter(call.given.items())), len(call.out)
    dims = call.dims(call.out, _numbered(rank))
    if _shape(node) != call.out:
        return None
    given = call.given.get("dim", call.given.get("dims", -1))
    if given == []:
        return None
    along = {str(d % rank) for d in (given if isinstance(given, (list, tuple)) else [given])}
    return call.rule(dims, {first: dims}, whole=frozenset(along & call.sizes.keys()))


def _normalized(call: Call) -> Rule | None:
    """Layer and RMS norm: the last dimensions are whole."""
    rank, last = len(call.out), len(call.given["normalized_shape"])
    axes = _numbered(rank)
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
    axes = _numbered(rank)
    dims = call.dims(shape, axes)
    kept = bool(call.given.get("keepdim"))
    output = tuple(() if d in gone else dims[d] for d in range(rank) if kept or d not in gone)
    fold = FOLDS.get(op_name(call.node), "")
    whole = frozenset() if fold else frozenset(axes[d] for d in gone) & call.sizes.keys()
    return call.rule(output, {first: dims}, whole=whole, fold=fold)


def _linear(call: Call) -> Rule | None:
    x, weight = call.shape("input"), call.shape("weight")
    if len(weight) != 2:
        return None
    batch = _numbered(len(x) - 1)
    found = {
        "input": call.dims(x, [*batch, "k"]),
        "weight": call.dims(weight, ["n", "k"]),
        "bias": call.dims(weight[:1], ["n"]),
    }
    output = call.dims(call.out, [*batch, "n"])
    rest = ("aten.linear.default", ("input", "weight"))
    return call.rule(output, found, fold="add", rest=rest)


def _product(first: str, second: str, added: str = "", rest: str = "") -> Any:
    """mm, bmm, addmm, baddbmm."""

    def make(call: Call) -> Rule | None:
        batch = _numbered(len(call.out) - 2)
        found = {
            first: call.dims(call.shape(first), [*batch, "m", "k"]),
            second: call.dims(call.shape(second), [*batch, "k", "n"]),
        }
        output = call.dims(call.out, [*batch, "m", "n"])
        if not added:
            return call.rule(output, found, fold="add")
        shape = call.shape(added)
        axes = [*batch, "m", "n"][len(call.out) - len(shape) :]
        found[added] = call.dims(shape, axes)
        plain = call.given["beta"] == 1 and call.given["alpha"] == 1
        return call.rule(
            output,
            found,
            fold="add",
            whole=frozenset() if plain else frozenset({"k"}) & call.sizes.keys(),
            rest=(rest, (first, second)),
        )

    return make


def _matmul(call: Call) -> Rule | None:
    """matmul: batch dimensions are broadcast; a vector has no row or no column."""
    left, right = call.shape("self"), call.shape("other")
    rows, columns = ["m"] * (len(left) > 1), ["n"] * (len(right) > 1)
    rank = len(call.out) - len(rows) - len(columns)

    def batch(shape: Sequence[int]) -> list[str]:
        count = max(len(shape) - 2, 0)
        return _numbered(count, rank - count)

    inner = ["k", *columns] if columns else ["k"]
    found = {
        "self": call.dims(left, [*batch(left), *rows, "k"]),
        "other": call.dims(right, [*batch(right), *inner]),
    }
    output = call.dims(call.out, [*_numbered(rank), *rows, *columns])
    return call.rule(output, found, fold="add")


def _einsum(call: Call) -> Rule | None:
    """Einsum of an equation without an ellipsis and without diagonals."""
    equation, nodes = call.given["equation"].replace(" ", ""), call.given["tensors"]
    terms, arrow, result = equation.partition("->")
    words = terms.split(",")
    if "." in equation or not arrow or any(len(set(w)) < len(w) for w in (*words, result)):
        return None
    sizes: dict[str, int] = {}
    for word, node in zip(words, nodes, strict=True):
        for letter, size in zip(word, _shape(node), strict=True):
            if sizes.setdefault(letter, size) != size:
                return None
    found = [call.dims(_shape(n), list(word)) for word, n in zip(words, nodes, strict=True)]
    return call.rule(call.dims(call.out, list(result)), {"tensors": found}, fold="add")


def _attention(call: Call) -> Rule | None:
    """Scaled dot-product attention: by batch, head, query (unless causal) and column of values."""
    q, k, v = (call.shape(name) for name in ("query", "key", "value"))
    if len({len(q), len(k), len(v)}) > 1 or len(q) < 3:
        return None
    batch, shared, mask = q[:-2], k[:-2], call.given["attn_mask"]
    outer = _numbered(len(batch) - 1)
    groups = batch[-1] // shared[-1] if call.given["enable_gqa"] else 1
    if groups > 1 and (shared != v[:-2] or batch != (*shared[:-1], groups * shared[-1])):
        return None
    dims = {
        "query": call.dims(q, [*outer, "b", "l", "e"]),
        "key": call.dims(k, [*outer, "b", "s", "e"]),
        "value": call.dims(v, [*outer, "b", "s", "f"]),
    }
    output = call.dims(call.out, [*outer, "b", "l", "f"])
    if groups > 1:  # heads share keys and values
        call.sizes |= {"b": shared[-1], "g": groups}
        heads = ["b"] * (shared[-1] > 1) + ["g"]
        if shared[-1] == 1:
            del call.sizes["b"]
        at = len(outer)
        dims["query"] = (*dims["query"][:at], tuple(heads), *dims["query"][at + 1 :])
        output = (*output[:at], tuple(heads), *output[at + 1 :])
    if mask is not None:
        shape = _shape(mask)
        axes = [*outer, "b", "l", "s"][len(q) - len(shape) :]
        if groups > 1 and len(shape) >= 3 and shape[-3] > 1:
            return None
        dims["attn_mask"] = tuple((a,) if n > 1 else () for n, a in zip(shape, axes, strict=True))
    whole = {"s", "e"} | ({"l"} if call.given["is_causal"] else set())
    return call.rule(output, dims, whole=frozenset(whole) & call.sizes.keys())


def _embedding(call: Call) -> Rule | None:
    indices, table = call.shape("indices"), call.shape("weight")
    rows = _numbered(len(indices))
    found = {
        "weight": call.dims(table, ["rows", "columns"]),
        "indices": call.dims(indices, rows),
    }
    output = call.dims(call.out, [*rows, "columns"])
    return call.rule(output, found, whole=frozenset({"rows"}) & call.sizes.keys())


def _index_select(call: Call) -> Rule | None:
    shape, dim = call.shape("self"), call.given["dim"]
    axes = _numbered(len(shape))
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
    (dim,), positions = at, _shape(given[at[0]])
    axes = _numbered(len(shape))
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
    axes = _numbered(len(shape))
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
    axes, found, own = _numbered(rank), [], {str(dim)}
    for i, node in enumerate(nodes):
        shape = _shape(node)
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
    axes = _numbered(rank)
    output = call.dims(call.out, axes)
    own = [output[:dim] + output[dim + 1 :]] * len(nodes)
    return call.rule(output, {"tensors": own}, whole=frozenset({axes[dim]}) & call.sizes.keys())


def _pool(call: Call) -> Rule | None:
    """Pooling over as many of the last dimensions as the name says, which are whole."""
    (first, node), rank = next(iter(call.given.items())), len(call.out)
    last = int(op_name(call.node).removesuffix("d")[-1])
    axes = _numbered(rank)
    inner = [f"{a}.in" if d >= rank - last else a for d, a in enumerate(axes)]
    dims, output = call.dims(_shape(node), inner), call.dims(call.out, axes)
    whole = frozenset([*axes[rank - last :], *inner[rank - last :]]) & call.sizes.keys()
    return call.rule(output, {first: dims}, whole=whole)


def _slice(call: Call) -> Rule | None:
    """Part of a dimension, or a dimension with something added: whole before and after."""
    (first, node), rank = next(iter(call.given.items())), len(call.out)
    shape = _shape(node)
    if len(shape) != rank:
        return None
    axes = _numbered(rank)
    pads = len(call.given.get("pad", ())) // 2
    changed = [d for d in range(rank) if shape[d] != call.out[d] or d >= rank - pads]
    source = [f"{a}.rows" if d in changed else a for d, a in enumerate(axes)]
    whole = {name for d in changed for name in (axes[d], source[d])}
    if not changed:
        whole = set(axes)
    dims = call.dims(shape, source)
    output = call.dims(call.out, axes)
    return call.rule(output, {first: dims}, whole=frozenset(whole) & call.sizes.keys())


def _convolution(call: Call) -> Rule | None:
    """A convolution: by batch, and by input and output channel where these are not grouped."""
    x, weight = call.shape("input"), call.shape("weight")
    if len(x) != len(weight):  # without a batch
        return None
    space = len(x) - 2
    old, new = [f"i{d}" for d in range(space)], [f"o{d}" for d in range(space)]
    window = [f"w{d}" for d in range(space)]
    grouped = call.given["groups"] != 1
    inner = "j" if grouped else "c"  # input channels as the weight has them
    found = {
        "input": call.dims(x, ["b", "c", *old]),
        "weight": call.dims(weight, ["n", inner, *window]),
        "bias": call.dims(weight[:1], ["n"]),
    }
    output = call.dims(call.out, ["b", "n", *new])
    whole = {*old, *new, *window} | ({"c", "j", "n"} if grouped else set())
    names = ("input", "weight", "", "stride", "padding", "dilation", "groups")
    return call.rule(
        output,
        found,
        fold="add",
        whole=frozenset(whole) & call.sizes.keys(),
        rest=(f"aten.{op_name(call.node)}.{call.node.target._overloadname}", names),  # type: ignore[union-attr]
    )


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
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    "linear": _linear,
    "mm": _product("self", "mat2"),
    "bmm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2", "self", "aten.mm.default"),
    "baddbmm": _product("batch1", "batch2", "self", "aten.bmm.default"),
    "matmul": _matmul,
    "einsum": _einsum,
    "scaled_dot_product_attention": _attention,
    "embedding": _embedding,
    "index_select": _index_select,
    "index": _index,
    "gather": _gather,
    "cat": _cat,
}
