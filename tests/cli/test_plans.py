"""The plan is shown: by device, by vertex, as JSON, as CSV, and again from its file."""

from pathlib import Path

import pytest
from command_line import Dop

from doppler.assignment import read_assignment
from doppler.errors import AssignmentError
from doppler.formats import read_graph
from doppler.graph import write_graph
from doppler.programs import random_dag
from doppler.topology import Topology


def test_a_small_graph_is_listed_whole(dop: Dop, files: Path) -> None:
    shown = dop("place", "graph.json", "-t", "p100x4", "-p", "round-robin").out
    graph = read_graph(files / "graph.json")
    for vertex in graph.assigned.tolist():
        row = next(r for r in shown.splitlines() if f" {graph.vertex_names[vertex]} " in r)
        assert "gpu" in row
    for word in ("operations", "busy", "in", "out", "peak memory", "gpu3", "of 16 GB"):
        assert word in shown


def test_a_large_graph_is_listed_on_request(dop: Dop, files: Path) -> None:
    graph = random_dag(vertices=60, depth=4, seed=0)
    write_graph(graph, files / "large.json")
    last = f" {graph.vertex_names[int(graph.assigned[-1])]} "
    place = ("place", "large.json", "-t", "p100x4", "-p", "round-robin")
    result = dop(*place)
    assert last not in result.out
    assert "60 vertices are not listed; see them with --full" in result.err
    assert last in dop(*place, "--full").out


def test_json_holds_the_plan_by_name(dop: Dop, files: Path) -> None:
    place = ("place", "graph.json", "-t", "p100x4", "-p", "round-robin", "-o", "a.json")
    report = dop(*place, "--json").json()
    graph, topology = read_graph(files / "graph.json"), Topology.preset("p100x4")
    assignment = read_assignment(files / "a.json")
    assert report["plan"] == assignment.by_name(graph, topology) == assignment.by_name()
    assert len(report["plan"]) == 20
    assert [row["device"] for row in report["devices"]] == ["gpu0", "gpu1", "gpu2", "gpu3"]
    assert sum(row["operations"] for row in report["devices"]) == 20
    moved = sum(row["bytes_in"] for row in report["devices"])
    simulated = dop("simulate", "graph.json", "a.json", "--json").json()
    assert moved == pytest.approx(simulated["bytes_moved"])
    assert moved == pytest.approx(sum(row["bytes_out"] for row in report["devices"]))


def test_show_an_assignment(dop: Dop, files: Path) -> None:
    place = ("place", "graph.json", "-t", "p100x4", "-p", "round-robin", "-o", "a.json")
    placed = dop(*place, "--json").json()
    alone = dop("show", "a.json")
    assert "20 operations assigned by round-robin for p100x4" in alone.out
    assert all(f" {vertex} " in alone.out for vertex in placed["plan"])
    assert dop("show", "a.json", "--json").json()["plan"] == placed["plan"]
    both = dop("show", "a.json", "--graph", "graph.json", "--json").json()
    for key in ("makespan_s", "lower_bound_s", "gap", "plan", "devices"):
        assert both[key] == placed[key]
    assert "peak memory" in dop("show", "a.json", "-g", "graph.json").out


def test_show_an_assignment_of_version_1(dop: Dop, files: Path) -> None:
    """Without names it has numbers, and with its graph and a machine it has names."""
    (files / "old.json").write_text(
        '{"format": "doppler-assignment", "version": 1, "devices": ['
        + ", ".join(["null"] * 8 + ["1"] * 20)
        + "]}"
    )
    assert "vertex 27" in dop("show", "old.json").out
    shown = dop("show", "old.json", "-g", "graph.json", "-t", "p100x4")
    assert "gpu1" in shown.out
    with pytest.raises(AssignmentError, match="does not know the names"):
        read_assignment(files / "old.json").by_name()


def test_show_an_assignment_with_a_huge_device_number(dop: Dop, tmp_path: Path) -> None:
    """Only devices that occur are named."""
    text = '{"format": "doppler-assignment", "version": 1, "devices": [null, 4611686018427387904]}'
    (tmp_path / "a.json").write_text(text)
    shown = dop("show", "a.json")
    assert shown.code == 0, shown.err
    assert "device 4611686018427387904" in shown.out
    assert dop("show", "a.json", "--json").json()["plan"] == {
        "vertex 1": "device 4611686018427387904"
    }


def test_options_for_other_files_are_refused(dop: Dop, files: Path) -> None:
    assert dop("show", "graph.json", "-g", "graph.json").code == 2
    dop("place", "graph.json", "-t", "p100x4", "-p", "single", "-o", "a.json")
    assert dop("show", "a.json", "-t", "p100x4").code == 2


def test_one_bound_everywhere(dop: Dop, files: Path) -> None:
    """All commands give the same bound and gap for the same graph, machine and assignment."""
    on = ("-t", "p100x4", "--json")
    placed = dop("place", "graph.json", "-p", "heft", "-o", "a.json", *on).json()
    shown = dop("show", "graph.json", *on).json()
    simulated = dop("simulate", "graph.json", "a.json", *on).json()
    again = dop("show", "a.json", "-g", "graph.json", *on).json()
    assert placed["lower_bound_s"] == shown["lower_bound_s"]
    for report in (simulated, again):
        keys = ("makespan_s", "lower_bound_s", "gap")
        assert [report[key] for key in keys] == [placed[key] for key in keys]


def test_a_stronger_bound_is_saved_and_shown_again(dop: Dop, fork: str, tmp_path: Path) -> None:
    """The solver proves 6 s where paths and work say 5; for other costs it does not hold."""
    pytest.importorskip("ortools")
    on = ("-t", "reference:2", "--json")
    placed = dop("place", fork, "-p", "cp-sat", "--budget", "3", "-o", "a.json", *on).json()
    assert placed["lower_bound_s"] == 6
    assert dop("simulate", fork, "a.json", *on).json()["lower_bound_s"] == 6
    assert dop("show", "a.json", "-g", fork, *on).json()["gap"] == 0
    assert dop("show", "a.json", "--json").json()["lower_bound_s"] == 6
    cheaper = (tmp_path / fork).read_text().replace('"transfer_s": [1]', '"transfer_s": [0.5]')
    (tmp_path / "cheap.json").write_text(cheaper)
    assert dop("simulate", "cheap.json", "a.json", *on).json()["lower_bound_s"] == 5
