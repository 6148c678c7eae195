"""Pieces on the engine: several outputs, tensors of their own, under any assignment."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from engine.two_outputs import SIZE, expected_outputs, piece, two_outputs

from doppler.assignment import Assignment
from doppler.engine.engine import Engine, EngineConfig, execute
from doppler.engine.pieces import Cell, Cells, bind_piece, compiled
from doppler.errors import EngineError, OutOfMemoryError
from doppler.graph import GraphBuilder, Kernel
from doppler.graph.io import graph_from_json, graph_to_json
from doppler.graph.signatures import signatures
from doppler.topology import Topology


@pytest.mark.parametrize("mode", ["dynamic", "fixed"])
@pytest.mark.parametrize("devices", list(product((0, 1), repeat=3)))
def test_any_assignment_gives_what_torch_gives(mode, devices):
    graph, x = two_outputs(), torch.randn(SIZE, SIZE)
    assignment = Assignment(devices=np.array([-1, *devices]))
    with Engine("cpu2", "cpu", EngineConfig(mode=mode)) as engine:
        for value in (x, -x):
            found = engine.execute(graph, assignment, {"x": value}, repeats=2).outputs
            for name, whole in expected_outputs(value).items():
                assert torch.equal(found[name], whole), name
            assert not found["w"].is_inference()


def test_one_device_and_no_transfer_holds_nothing_but_results():
    graph = two_outputs()
    with Engine("cpu2", "cpu") as engine:
        engine.execute(graph, Assignment(devices=np.array([-1, 0, 1, 1])))
        (prepared,) = engine._prepared.values()
        held = [cell.value for cell in prepared.cells._cells]
    assert sum(value is not None for value in held) == 3  # of 5, and 2 copies


def test_a_tensor_that_is_changed_in_place_is_seen():
    graph, x = two_outputs(), torch.randn(SIZE, SIZE)
    assignment = Assignment(devices=np.array([-1, 0, 0, 1]))
    with Engine("cpu2", "cpu") as engine:
        engine.execute(graph, assignment, {"x": x})
        x.mul_(3)
        found = engine.execute(graph, assignment, {"x": x}).outputs
    assert torch.equal(found["w"], expected_outputs(x)["w"])


def test_a_graph_file_holds_pieces_whole():
    graph = two_outputs()
    again = graph_from_json(graph_to_json(graph))
    assert again == graph
    assert graph.is_result.tolist() == [False, False, False, True, True, True]
    x = np.ones((SIZE, SIZE), np.float32)
    result = execute(again, "cpu2", Assignment(devices=np.array([-1, 0, 0, 1])), inputs={"x": x})
    assert torch.equal(result.outputs["w"], expected_outputs(torch.ones(SIZE, SIZE))["w"])


def test_signatures_are_of_what_a_piece_calls():
    graph = two_outputs()
    found = signatures(graph)
    assert len(set(found)) == 4
    assert found == signatures(graph_from_json(graph_to_json(graph)))


def test_values_that_json_lacks():
    calls = [
        ["aten.full.default", [[1, 1, 1, 2], {"float": "-inf"}], {"dtype": {"dtype": "float64"}}],
        ["aten.to.dtype", [{"in": 0}, {"dtype": "float64"}], {}],
        ["aten.cat.default", [[{"at": 0}, {"at": 1}], 3], {}],
        [
            "aten.clone.default",
            [{"at": 2}],
            {"memory_format": {"memory_format": "channels_last"}},
        ],
        ["aten.arange.default", [3], {"device": {"device": True}, "layout": {"layout": "strided"}}],
    ]
    run = compiled(piece((0,), calls, [{"at": 3}, {"at": 4}]))
    found, counted = run(torch.ones(1, 1, 1, 1))
    assert found.flatten().tolist() == [-torch.inf, -torch.inf, 1]
    assert counted.tolist() == [0, 1, 2]


def test_equal_calls_share_one_function():
    calls = [["aten.relu.default", [{"in": 0}], {}]]
    assert compiled(piece((0,), calls, [{"at": 0}])) is compiled(piece((7,), calls, [{"at": 0}]))


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ([["aten.relu.default", [{"in": 1}], {}]], "number 1 of 1"),
        ([["aten.relu.default", [{"at": 0}], {}]], "number 0 of 0"),
        ([["aten.no_such_op.default", [], {}]], "no operation"),
        ([["aten.from_file.default", ["/etc/passwd"], {}]], "may not"),
        ([["c10d.broadcast_.default", [], {}]], "may not"),
        ([["os.system.x", [], {}]], "no operation"),
        ([["__import__('os')", [], {}]], "no name"),
        ([["aten.relu.default", [{"in": 0}], {"x = 1": 1}]], "keywords"),
        ([["aten.relu.default", [{"in": 0, "at": 0}], {}]], "stands for nothing"),
        ([["aten.relu.default", [{"dtype": "nothing"}], {}]], "argument"),
        ([["aten.relu.default"]], "is not"),
        ("relu", "lists"),
    ],
)
def test_what_is_no_piece_is_refused(calls, says):
    with pytest.raises(EngineError, match=says):
        compiled(piece((0,), calls, [{"in": 0}]))


def test_a_failing_piece_names_its_vertex():
    b = GraphBuilder("fails")
    kernel = Kernel("input", (), ((2, 3),), ("float32",), {"block": [[0, 2], [0, 3]]})
    x = b.tensor(b.vertex("x", "input", meta_op="x", kernel=kernel), 24)
    calls = [["aten.mm.default", [{"in": 0}, {"in": 0}], {}]]
    v = b.vertex("product", "mm", kernel=piece((x,), calls, [{"at": 0}]))
    b.tensor(v, 8)
    b.edge(x, v)
    with pytest.raises(EngineError, match="`product`"):
        execute(b.build(), "cpu2", Assignment(devices=np.array([-1, 0])))


def test_a_piece_that_returns_no_tensor_fails():
    with pytest.raises(TypeError, match="returns a int"):
        bind_piece(piece((), [], [7]), [], [Cell()])()


def test_cells_are_emptied_after_their_last_use():
    cells = Cells()
    cell, kept = cells.new(0, [1, 2], kept=False), cells.new(0, [], kept=True)
    cells.begin()
    launch = bind_piece(piece((), [], []), [], [])
    launch()
    cell.value = kept.value = torch.ones(1)
    cells.release([0, 1])
    assert cell.value is not None
    cells.release([2])
    assert cell.value is None
    assert kept.value is not None
    copy = Cell()
    copy.take(kept)
    assert copy.value is not kept.value


def small_devices(memory_bytes: float) -> Topology:
    topology = Topology.preset("cpu2")
    return replace(
        topology, devices=tuple(replace(d, memory_bytes=memory_bytes) for d in topology.devices)
    )


@pytest.mark.parametrize("mode", ["dynamic", "fixed"])
def test_what_pieces_return_counts_in_the_memory_of_their_device(mode):
    graph, x = two_outputs(), torch.randn(SIZE, SIZE)
    apart, together = (Assignment(devices=np.array([-1, *d])) for d in ((0, 0, 1), (0, 0, 0)))
    with Engine("cpu2", "cpu", EngineConfig(mode=mode)) as engine:
        needed = int(engine.peak_bytes(graph, together)[0])
        assert needed >= graph.tensor_bytes.sum()
        split = engine.peak_bytes(graph, apart)
        assert (split > 0).all()
    with Engine(small_devices(needed), "cpu", EngineConfig(mode=mode)) as engine:
        found = engine.execute(graph, together, {"x": x}).outputs
        assert torch.equal(found["w"], expected_outputs(x)["w"])
        assert engine.peak_bytes(graph, together).max() <= needed
    with (
        Engine(small_devices(64), "cpu", EngineConfig(mode=mode)) as engine,
        pytest.raises(OutOfMemoryError, match="device `core0` is out of memory"),
    ):
        engine.execute(graph, together, {"x": x})
