"""A graph of pieces, some with two outputs."""

from doppler.engine.pieces import PIECE
from doppler.graph import Graph, GraphBuilder, Kernel

SIZE = 4


def piece(inputs, calls, returns, results=None, shapes=None):
    shapes = shapes or ((SIZE, SIZE),) * len(returns)
    attributes = {"calls": calls, "returns": returns}
    attributes |= {"results": results or [None] * len(returns)}
    return Kernel(PIECE, inputs, shapes, ("float32",) * len(returns), attributes)


def two_outputs() -> Graph:
    """y, z = x @ x, relu(x); w = y + z; v = sort(w) in two parts."""
    b = GraphBuilder("two outputs")
    block = {"block": [[0, SIZE], [0, SIZE]]}
    kernel = Kernel("input", (), ((SIZE, SIZE),), ("float32",), block)
    x = b.tensor(b.vertex("x", "input", meta_op="x", kernel=kernel), 64)
    calls = [
        ["aten.mm.default", [{"in": 0}, {"in": 0}], {}],
        ["aten.relu.default", [{"in": 0}], {}],
    ]
    first = b.vertex("first", "mm", flops=1, kernel=piece((x,), calls, [{"at": 0}, {"at": 1}]))
    y, z = b.tensor(first, 64), b.tensor(first, 64)
    b.edge(x, first)
    calls = [["aten.add.Tensor", [{"in": 0}, {"in": 1}], {"alpha": 2}]]
    second = b.vertex("second", "add", flops=1, kernel=piece((y, z), calls, [{"at": 0}], ["w"]))
    w = b.tensor(second, 64)
    b.edge(y, second)
    b.edge(z, second)
    calls = [["aten.sort.default", [{"in": 0}, -1, True], {}]]
    calls += [["aten.t.default", [{"at": [0, 0]}], {}]]
    kernel = piece((w,), calls, [{"at": 1}, {"at": [0, 1]}], ["values", "indices"])
    third = b.vertex("third", "sort", flops=1, kernel=kernel)
    b.tensor(third, 64)
    b.tensor(third, 64)
    b.edge(w, third)
    return b.build()


def expected_outputs(x):
    w = x @ x + 2 * x.relu()
    values, indices = w.sort(-1, True)
    return {"w": w, "values": values.t(), "indices": indices}
