from pathlib import Path

import numpy as np
import pytest

import doppler as dp
from doppler.errors import FormatError, UnknownNameError, WrongTypeError
from doppler.resolve import as_assignment, as_graph, as_topology
from doppler.topology import write_topology


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with g.json, a.json and machine.json."""
    monkeypatch.chdir(tmp_path)
    graph = dp.programs.random_dag(vertices=10, depth=3, seed=0)
    dp.write_graph(graph, tmp_path / "g.json")
    dp.write_assignment(dp.Assignment(np.where(graph.is_input, -1, 0)), tmp_path / "a.json")
    write_topology(dp.Topology.preset("cpu2"), tmp_path / "machine.json")
    return tmp_path


def test_values_pass_and_names_are_looked_up(folder: Path) -> None:
    graph, topology = dp.read_graph("g.json"), dp.Topology.preset("cpu2")
    assignment = dp.read_assignment("a.json")
    assert as_graph(graph) is graph
    assert as_topology(topology) is topology
    assert as_assignment(assignment) is assignment
    for path in ("g.json", folder / "g.json"):
        assert as_graph(path).digest() == graph.digest()
    for name in ("cpu2", "machine.json", folder / "machine.json"):
        assert as_topology(name).num_devices == 2
    assert as_assignment("a.json") == as_assignment(folder / "a.json") == assignment


def test_what_is_not_there_is_said(folder: Path) -> None:
    with pytest.raises(FormatError, match=r"no file `h\.json`"):
        as_graph("h.json")
    with pytest.raises(UnknownNameError, match="did you mean `p100x4`"):
        as_topology("p100x5")
    with pytest.raises(FormatError, match=r"no file `b\.json`"):
        as_assignment("b.json")


def test_a_value_of_a_wrong_type_is_a_type_error(folder: Path) -> None:
    topology = dp.Topology.preset("cpu2")
    with pytest.raises(WrongTypeError, match=r"graph must be a Graph, .* not of type `Topology`"):
        dp.place(topology, "cpu2")  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError, match=r"topology must be a Topology.*`int`"):
        dp.Simulator(4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"assignment must be an Assignment.*`list`"):
        dp.simulate("g.json", topology, [0, 1])  # type: ignore[arg-type]


def test_public_functions_take_names(folder: Path) -> None:
    graph, topology = dp.read_graph("g.json"), dp.Topology.preset("cpu2")
    placed = dp.place("g.json", "cpu2", "critical-path")
    assert placed == dp.place(graph, topology, "critical-path")
    assert dp.place(folder / "g.json", "machine.json", "critical-path") == placed
    trace = dp.simulate("g.json", "cpu2", "a.json")
    assert trace.makespan_s == dp.simulate(graph, topology, dp.read_assignment("a.json")).makespan_s
    assert dp.lower_bounds("g.json", "cpu2") == dp.lower_bounds(graph, topology)
    assert dp.Simulator("cpu2").run(graph, placed).makespan_s > 0
    assert dp.ReferenceSimulator("cpu2").run(graph, placed).makespan_s > 0
    assert [row.placer for row in dp.compare("g.json", "cpu2", ["single"], seeds=1)] == ["single"]


def test_engines_take_names(folder: Path) -> None:
    with dp.Engine("cpu2", "null") as engine:
        assert engine.topology.name == "cpu2"
        validation = dp.validate("g.json", "cpu2", engine, ["a.json", folder / "a.json"])
    assert len(validation.measured_s) == 2
    assert dp.execute("g.json", "cpu2", "a.json", backend="null").trace.makespan_s >= 0


def test_training_takes_names(folder: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(UnknownNameError, match="p100x5"):
        dp.train(["g.json", folder / "g.json"], "p100x5")
    with pytest.raises(FormatError, match=r"h\.json"):
        dp.train("h.json", "cpu2")
    with pytest.raises(WrongTypeError, match="graph must be"):
        dp.train([4], "cpu2")  # type: ignore[list-item]
