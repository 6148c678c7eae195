"""Results that are put together from blocks."""

import numpy as np
import pytest
import torch

import doppler as dp
from doppler.engine.joined_blocks import join_blocks
from doppler.errors import EngineError, GraphError
from doppler.graph.builder import GraphBuilder
from doppler.graph.graph import Kernel
from doppler.sharding.evaluate import input_blocks, whole_shape


def block(*ranges, atoms=(2, 2, 3), whole=(4, 3)):
    return {"block": [list(r) for r in ranges], "atoms": list(atoms), "whole": list(whole)}


def graph_of(*blocks):
    """A graph of pieces that make these blocks of one result."""
    builder = GraphBuilder("blocks")
    for i, each in enumerate(blocks):
        attributes = {"calls": [], "returns": [], "results": ["y"], "blocks": [each]}
        kernel = Kernel("piece", (), ((2, 3),), ("float32",), attributes)
        vertex = builder.vertex(f"v{i}", "piece", kernel=kernel)
        builder.tensor(vertex, 24)
    return builder.build()


def test_blocks_of_factors_become_the_whole():
    halves = block((0, 2), (0, 1), (0, 3)), block((0, 2), (1, 2), (0, 3))
    whole = torch.arange(12.0).reshape(4, 3)
    parts = {i: whole.reshape(2, 2, 3)[:, i].clone() for i in range(2)}
    found = join_blocks(graph_of(*halves), {0: "y", 1: "y"}, parts)
    assert torch.equal(found["y"], whole)


@pytest.mark.parametrize(
    "wrong",
    [
        block((0, 2), (0, 2), (0, 4)),
        block((0, 2), (0, 1), (0, 3), atoms=(2, 2, 4)),
        block((0, 2), (0, 1)),
        block((0, 2), (0, 1), (0, 3), atoms=(1 << 62, 2, 3)),
        {"block": [[0, 2]]},
        "all",
        3,
    ],
)
def test_blocks_that_do_not_fit_are_refused(wrong):
    with pytest.raises(EngineError, match="result"):
        join_blocks(graph_of(wrong), {0: "y"}, {0: torch.ones(2, 3)})


def test_a_result_that_lacks_blocks_is_refused():
    half = block((0, 2), (0, 1), (0, 3))
    with pytest.raises(EngineError, match="lacks blocks"):
        join_blocks(graph_of(half), {0: "y"}, {0: torch.ones(2, 3)})


def input_graph(**attributes):
    builder = GraphBuilder("inputs")
    shape = tuple(high - low for low, high in attributes["block"])
    kernel = Kernel("input", (), (shape,), ("float32",), attributes)
    builder.tensor(builder.vertex("x[0]", "input", kernel=kernel, meta_op="x"), 4)
    return builder.build()


def test_an_input_is_a_block_of_factors_of_a_whole():
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    graph = input_graph(block=[[0, 2], [1, 2], [0, 3]], atoms=[2, 2, 3], whole=[4, 3])
    assert whole_shape(graph, 0) == (4, 3)
    expected = x.reshape(2, 2, 3)[:, 1:2]
    assert np.array_equal(input_blocks(graph, {"x": x})[0], expected)
    assert torch.equal(
        input_blocks(graph, {"x": torch.from_numpy(x)})[0], torch.from_numpy(expected)
    )
    part = input_graph(block=[[1, 3], [0, 3]], whole=[4, 3])
    assert np.array_equal(input_blocks(part, {"x": x})[0], x[1:3])


@pytest.mark.parametrize(
    "wrong", [{"whole": [2, 3]}, {"whole": [4]}, {"whole": "x"}, {"whole": [4, 3], "atoms": [5, 3]}]
)
def test_an_input_that_is_no_block_is_refused(wrong):
    graph = input_graph(block=[[1, 3], [0, 3]], **wrong)
    with pytest.raises(GraphError, match="x"):
        input_blocks(graph, {"x": np.zeros((4, 3), np.float32)})


def test_graphs_with_blocks_of_inputs_get_random_ones():
    module = torch.nn.Linear(8, 8).eval()
    graph = dp.from_torch(module, (torch.ones(4, 8),), parts=2).graph
    assignment = dp.place(graph, "cpu2", "round-robin")
    assert dp.execute(graph, "cpu2", assignment).outputs["output"].shape == (4, 8)
