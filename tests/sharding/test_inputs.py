"""The kinds that the inputs of sharded programs get."""

import pytest

import doppler as dp
from doppler.errors import UnknownNameError
from doppler.graph import Graph
from doppler.programs.program import Program
from doppler.programs.registry import WORKLOADS
from doppler.sharding import INPUTS, shard

DATA = {"attention": {"x"}, "chainmm": set(), "ffnn": {"X"}, "llama-block": {"x"}}
DATA |= {"llama-layer": {"x"}, "mlp": {"x"}, "moe-layer": {"x"}, "transformer": {"x"}}


def kinds(graph: Graph) -> dict[str, str]:
    """The kind of each input, by the operation that it is a block of."""
    rows = zip(graph.meta_ops, graph.input_kinds, strict=True)
    return {name: kind for name, kind in rows if kind}


def test_every_workload_that_is_a_program_is_here() -> None:
    graphs = {"cholesky", "random-dag"}
    assert WORKLOADS.keys() - graphs == DATA.keys()


@pytest.mark.parametrize("name", DATA)
def test_all_inputs_of_a_workload_but_its_data_are_weights(name: str) -> None:
    program = WORKLOADS[name].build()
    assert isinstance(program, Program)
    inputs = [op for op in program.ops if op.kind == "input"]
    assert {op.name for op in inputs if not op.is_weight} == DATA[name]
    assert not any(op.is_weight for op in program.ops if op.kind != "input")


def test_inputs_get_the_kind_that_is_asked_for() -> None:
    b = dp.ProgramBuilder("dense")
    x, w = b.input("x", (8, 4)), b.input("w", (4, 2), weight=True)
    program = b.build((x @ w).named("y"))
    assert kinds(shard(program, 2)) == {"x": "resident", "w": "resident"}
    assert kinds(shard(program, 2, inputs="marked")) == {"x": "streamed", "w": "resident"}
    assert kinds(shard(program, 2, inputs="everywhere")) == {"x": "everywhere", "w": "everywhere"}
    graphs = [shard(program, 2, inputs=inputs) for inputs in INPUTS]
    assert len({graph.digest() for graph in graphs}) == 1
    assert graphs[0] != graphs[1] != graphs[2]


def test_an_unknown_kind_of_inputs_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="no kind of inputs named `residents`"):
        shard(dp.programs.chainmm(size=64), 2, inputs="residents")
