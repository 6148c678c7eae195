"""Rules of what multiplies and sums: products, attention, convolutions."""

from collections.abc import Callable, Sequence

from doppler.frontends.lifting.rule import Call, Rule, numbered, tensor_shape
from doppler.frontends.nodes import op_name


def linear(call: Call) -> Rule | None:
    """A product with a transposed weight, and a bias."""
    x, weight = call.shape("input"), call.shape("weight")
    if len(weight) != 2:
        return None
    batch = numbered(len(x) - 1)
    found = {
        "input": call.dims(x, [*batch, "k"]),
        "weight": call.dims(weight, ["n", "k"]),
        "bias": call.dims(weight[:1], ["n"]),
    }
    output = call.dims(call.out, [*batch, "n"])
    rest = ("aten.linear.default", ("input", "weight"))
    return call.rule(output, found, fold="add", rest=rest)


def product(
    first: str, second: str, added: str = "", rest: str = ""
) -> Callable[[Call], Rule | None]:
    """The rule of a product of matrices, or of batches of them, that may be added to something."""

    def make(call: Call) -> Rule | None:
        batch = numbered(len(call.out) - 2)
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


def matmul(call: Call) -> Rule | None:
    """matmul: batch dimensions are broadcast; a vector has no row or no column."""
    left, right = call.shape("self"), call.shape("other")
    rows, columns = ["m"] * (len(left) > 1), ["n"] * (len(right) > 1)
    rank = len(call.out) - len(rows) - len(columns)

    def batch(shape: Sequence[int]) -> list[str]:
        count = max(len(shape) - 2, 0)
        return numbered(count, rank - count)

    inner = ["k", *columns] if columns else ["k"]
    found = {
        "self": call.dims(left, [*batch(left), *rows, "k"]),
        "other": call.dims(right, [*batch(right), *inner]),
    }
    output = call.dims(call.out, [*numbered(rank), *rows, *columns])
    return call.rule(output, found, fold="add")


def einsum(call: Call) -> Rule | None:
    """Einsum of an equation without an ellipsis and without diagonals."""
    equation, nodes = call.given["equation"].replace(" ", ""), call.given["tensors"]
    terms, arrow, result = equation.partition("->")
    words = terms.split(",")
    if "." in equation or not arrow or any(len(set(w)) < len(w) for w in (*words, result)):
        return None
    sizes: dict[str, int] = {}
    for word, node in zip(words, nodes, strict=True):
        for letter, size in zip(word, tensor_shape(node), strict=True):
            if sizes.setdefault(letter, size) != size:
                return None
    found = [call.dims(tensor_shape(n), list(word)) for word, n in zip(words, nodes, strict=True)]
    return call.rule(call.dims(call.out, list(result)), {"tensors": found}, fold="add")


def attention(call: Call) -> Rule | None:
    """Scaled dot-product attention: by batch, head, query (unless causal) and column of values."""
    q, k, v = (call.shape(name) for name in ("query", "key", "value"))
    if len({len(q), len(k), len(v)}) > 1 or len(q) < 3:
        return None
    batch, shared, mask = q[:-2], k[:-2], call.given["attn_mask"]
    outer = numbered(len(batch) - 1)
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
        shape = tensor_shape(mask)
        axes = [*outer, "b", "l", "s"][len(q) - len(shape) :]
        if groups > 1 and len(shape) >= 3 and shape[-3] > 1:
            return None
        dims["attn_mask"] = tuple((a,) if n > 1 else () for n, a in zip(shape, axes, strict=True))
    whole = {"s", "e"} | ({"l"} if call.given["is_causal"] else set())
    return call.rule(output, dims, whole=frozenset(whole) & call.sizes.keys())


def convolution(call: Call) -> Rule | None:
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
