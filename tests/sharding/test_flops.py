"""What one shard of each kind of operation costs, by hand."""

import pytest

from doppler.programs import ProgramBuilder, Tensor, concat, relu, to_complex, to_real
from doppler.sharding import shard


def chosen(b: ProgramBuilder, which: str) -> Tensor:
    x, y = b.input("x", (4, 8)), b.input("y", (4, 8))
    c = b.input("c", (4, 8), dtype="complex64")
    half = b.input("half", (4, 8), dtype="float16")
    return {
        "matmul": lambda: x @ y.T,
        "complex matmul": lambda: c @ c.T,
        "float16 matmul": lambda: half @ half.T,
        "relu": lambda: relu(x),
        "cast": lambda: half.astype("float32"),
        "add": lambda: x + y,
        "complex add": lambda: c + c,
        "broadcast add": lambda: x + b.input("v", (8,)),
        "sum": lambda: x.sum(0),
        "max": lambda: x.max(0, 1),
        "fill": lambda: b.fill((4, 8), 1.0),
        "slice": lambda: x[:2, :4],
        "concat": lambda: concat([x, y], 0),
        "complexer": lambda: to_complex(x),
        "real": lambda: to_real(c),
        "squeeze": lambda: b.input("z", (4, 1, 8)).squeeze(1),
    }[which]()


COSTS = {  # flops, elements read and written times their bytes
    "matmul": (2 * 4 * 4 * 8, (32 + 32 + 16) * 4),
    "complex matmul": (4 * 2 * 4 * 4 * 8, (32 + 32 + 16) * 8),
    "float16 matmul": (2 * 4 * 4 * 8, (32 + 32 + 16) * 2),
    "relu": (32, (32 + 32) * 4),
    "cast": (32, 32 * 2 + 32 * 4),
    "add": (32, (32 + 32 + 32) * 4),
    "complex add": (4 * 32, (32 + 32 + 32) * 8),
    "broadcast add": (32, (32 + 8 + 32) * 4),
    "sum": (32, (32 + 8) * 4),
    "max": (32, (32 + 1) * 4),
    "fill": (0, 32 * 4),
    "slice": (0, (8 + 8) * 4),
    "concat": (0, (32 + 32 + 64) * 4),
    "complexer": (0, 0),
    "real": (0, 0),
    "squeeze": (0, 0),
}


@pytest.mark.parametrize("which", COSTS)
def test_flops_and_bytes_of_an_uncut_operation(which: str) -> None:
    b = ProgramBuilder("one")
    tensor = chosen(b, which)
    graph = shard(b.build(tensor), 1)
    v = graph.vertex_names.index(f"{tensor.name}[{','.join('0' for _ in b.ops[tensor.op].join)}]")
    assert (graph.flops[v], graph.touched_bytes[v]) == COSTS[which]


def test_a_block_touches_what_it_reads_of_a_larger_block() -> None:
    b = ProgramBuilder("rows")
    program = b.build(relu(b.input("x", (8, 8))))
    graph = shard(program, 1, partitions={"x": (1, 1), "relu": (4, 2)})
    assert graph.flops.tolist() == [0] + [8] * 8
    assert graph.touched_bytes.tolist() == [0] + [(8 + 8) * 4] * 8
    assert graph.tensor_bytes.tolist() == [64 * 4] + [8 * 4] * 8


def test_a_select_touches_only_the_parts_it_copies() -> None:
    b = ProgramBuilder("two halves")
    program = b.build(concat([b.input("x", (4,)), b.input("y", (4,))], 0))
    graph = shard(program, 1, partitions={"concat": (2,)})
    blocks = [v for v, kind in enumerate(graph.kinds) if kind == "select"]
    assert graph.touched_bytes[blocks].tolist() == [(4 + 4) * 4] * 2
    assert [graph.kernels[v].inputs for v in blocks] == [(0,), (1,)]
