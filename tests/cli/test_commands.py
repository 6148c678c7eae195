"""What each command does when all is well."""

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Dop

from doppler import __version__
from doppler.assignment import read_assignment
from doppler.formats import read_graph
from doppler.placers import lower_bounds
from doppler.sim import Noise, SimConfig, Simulator, simulate
from doppler.topology import Topology, write_topology
from doppler.trace import read_trace

REFERENCE_TEXT = "4\n0,\n0, 1,\n1, 2,\n2,8,einsummable\n3,12,formation\n4,16\n"
VERBS = (
    *("demo", "shard", "import", "show", "place", "simulate", "compare", "list"),
    *("train", "execute", "probe", "validate"),
)


def test_help_names_every_verb(dop: Dop) -> None:
    result = dop("--help")
    assert result.code == 0
    assert all(verb in result.out for verb in VERBS)
    assert dop("--version").out == f"dop {__version__}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_has_an_example(dop: Dop, verb: str) -> None:
    result = dop(verb, "--help")
    assert result.code == 0
    assert f"Example: dop {verb}" in result.out
    assert "--json" in result.out


def test_demo_draws_a_timeline(dop: Dop) -> None:
    result = dop("demo")
    assert result.code == 0
    for word in ("critical-path", "round-robin", "random", "single", "lower bound", "gpu3", "█"):
        assert word in result.out
    assert "doppler, simulated" in result.out
    assert result.err == ""
    assert result.out.endswith("in a browser: dop-demo.html\n")


def test_demo_writes_over_its_own_report_only(dop: Dop, tmp_path: Path) -> None:
    report = tmp_path / "dop-demo.html"
    assert dop("demo", "-o", "mine.html").out.endswith("in a browser: mine.html\n")
    assert not report.exists()
    assert dop("demo", "-o", "mine.html").code == 0
    page = (tmp_path / "mine.html").read_text("utf-8")
    report.write_text(page.replace('content="doppler-demo"', 'content="doppler-report"', 1))
    kept = report.read_bytes()
    result = dop("demo")
    assert result.code == 0
    assert result.err.startswith("no report: `dop-demo.html` holds a doppler-report")
    assert report.read_bytes() == kept
    assert dop("demo", "-o", "dop-demo.html").code == 2


def test_demo_as_json_is_sorted_and_above_the_bound(dop: Dop) -> None:
    rows = dop("demo", "--json", "--topology", "a100x2-t4x2", "--seed", "3").json()
    makespans = [row["makespan_s"] for row in rows]
    assert makespans == sorted(makespans)
    placers = {"doppler", "critical-path", "round-robin", "random", "single"}
    assert {row["placer"] for row in rows} == placers
    assert all(row["gap"] >= 0 for row in rows)
    assert not Path("dop-demo.html").exists()


def test_place_writes_what_it_reports(dop: Dop, files: Path) -> None:
    place = ("place", "graph.json", "--topology", "v100x8", "-o", "a.json")
    result = dop(*place, "--placer", "critical-path", "--json")
    graph, topology = read_graph(files / "graph.json"), Topology.preset("v100x8")
    assignment = read_assignment(files / "a.json")
    report = result.json()
    assert next(iter(report)) == "makespan_s"
    assert report["makespan_s"] == simulate(graph, topology, assignment).makespan_s
    assert report["lower_bound_s"] == lower_bounds(graph, topology).best_s
    assert report["gap"] == pytest.approx(report["makespan_s"] / report["lower_bound_s"] - 1)
    assert (report["placer"], assignment.placer) == ("critical-path", "critical-path")


def test_place_for_people(dop: Dop, files: Path) -> None:
    result = dop("place", "graph.json", "--placer", "round-robin")
    assert result.code == 0
    assert "round-robin on p100x4: makespan" in result.out
    assert "gap" in result.out


def test_place_searches_as_long_as_it_may_and_says_who_won(dop: Dop, files: Path) -> None:
    report = dop("place", "graph.json", "--budget", "0.3", "--json").json()
    assert report["placer"] == "auto"
    assert report["won"]
    heuristic = dop("place", "graph.json", "--placer", "round-robin", "--json").json()
    assert report["makespan_s"] <= heuristic["makespan_s"]
    assert "auto (" in dop("place", "graph.json", "--budget", "0.3").out


def test_place_says_what_is_proven_optimal(dop: Dop, tmp_path: Path) -> None:
    """Three vertices in a row of 9 s: one device, which the longest path proves."""
    (tmp_path / "chain.txt").write_text(REFERENCE_TEXT)
    place = ("place", "chain.txt", "-t", "reference:4")
    assert "gap 0.0 %, proven optimal" in dop(*place).out
    report = dop(*place, "--json").json()
    assert (report["makespan_s"], report["lower_bound_s"], report["optimal"]) == (9, 9, True)
    worse = dop(*place, "-p", "round-robin", "--json").json()
    assert (worse["lower_bound_s"], worse["optimal"]) == (9, False)
    assert "proven" not in dop(*place, "-p", "round-robin").out


def test_place_takes_over_the_bound_of_a_solver(dop: Dop, fork: str) -> None:
    pytest.importorskip("ortools")
    place = ("place", fork, "-t", "reference:2", "--budget", "3")
    assert dop(*place, "-p", "single", "--json").json()["lower_bound_s"] == 5
    for placer in ("auto", "cp-sat"):
        report = dop(*place, "-p", placer, "--json").json()
        assert (report["makespan_s"], report["lower_bound_s"], report["optimal"]) == (6, 6, True)


def test_simulate_gives_the_makespan_first_and_the_trace(dop: Dop, files: Path) -> None:
    result = dop(
        "simulate", "graph.json", "assignment.json", "-t", "p100x4", "-o", "t.json", "--json"
    )
    report = result.json()
    assert list(report)[:3] == ["makespan_s", "lower_bound_s", "gap"]
    bound = lower_bounds(read_graph(files / "graph.json"), Topology.preset("p100x4")).best_s
    assert report["lower_bound_s"] == bound
    assert report["gap"] == report["makespan_s"] / bound - 1
    trace = read_trace(files / "t.json")
    assert trace.makespan_s == report["makespan_s"]
    assert report["bytes_moved"] == trace.bytes_moved
    assert "makespan" in dop("show", "t.json").out
    assert dop("show", "t.json", "--json").json()["makespan_s"] == report["makespan_s"]


def test_simulate_passes_its_options_on(dop: Dop, files: Path) -> None:
    graph = read_graph(files / "graph.json")
    assignment = read_assignment(files / "assignment.json")
    config = SimConfig(
        strategy="critical-path", noise=Noise(0.1, 0.2, 0.3, (1.0, 1.0, 2.0, 1.0)), synchronous=True
    )
    simulator = Simulator(Topology.preset("p100x4"), config)
    expected = [simulator.run(graph, assignment, seed).makespan_s for seed in (5, 6, 7)]
    result = dop(
        *("simulate", "graph.json", "assignment.json", "-t", "p100x4", "--json"),
        *("--strategy", "critical-path", "--exec-noise", "0.1", "--transfer-noise", "0.2"),
        *("--device-noise", "0.3", "--slowdown", "1,1,2,1", "--bulk-synchronous"),
        *("--repeat", "3", "--seed", "5"),
    )
    assert result.json()["makespans_s"] == expected


def test_simulate_for_people(dop: Dop, files: Path) -> None:
    result = dop("simulate", "graph.json", "assignment.json", "-t", "p100x4", "--repeat", "2")
    for word in ("makespan", "±", "lower bound", "gap", "gpu0", "same-device", "critical chain"):
        assert word in result.out


@pytest.mark.parametrize(
    ("options", "holds"),
    [
        (["--bulk-synchronous"], True),
        (["--strategy", "random"], True),
        (["--slowdown", "1,1,2,1"], True),
        (["--slowdown", "1,1,2,0.5"], False),
        (["--exec-noise", "0.1"], False),
        (["--transfer-noise", "0.1"], False),
        (["--device-noise", "0.1"], False),
    ],
)
def test_simulate_gives_a_bound_where_it_holds(
    dop: Dop, files: Path, options: list[str], holds: bool
) -> None:
    simulate = ("simulate", "graph.json", "assignment.json", "-t", "p100x4", *options)
    report = dop(*simulate, "--json").json()
    if holds:
        assert report["makespan_s"] >= report["lower_bound_s"]
        assert report["gap"] >= 0
    else:
        assert (report["lower_bound_s"], report["gap"]) == (None, None)
    assert ("lower bound" in dop(*simulate).out) == holds


def test_simulate_without_memory_has_no_bound_from_memory(dop: Dop, files: Path) -> None:
    """The only device that holds the vertex is ten times as slow."""
    (files / "g.json").write_text(
        '{"format": "doppler-graph", "version": 1, "vertices": {"kind": ["matmul"], '
        '"exec_s": [[1, 10]]}, "tensors": {"producer": [0], "bytes": [8], "transfer_s": [0]}, '
        '"edges": {"tensor": [], "reader": []}}'
    )
    (files / "a.json").write_text('{"format": "doppler-assignment", "version": 1, "devices": [0]}')
    (files / "m.toml").write_text(
        'format = "doppler-topology"\nversion = 1\nname = "m"\n'
        '[[devices]]\nname = "small"\nmemory_bytes = 7\n[[devices]]\nname = "large"\n'
        '[[links]]\nname = "l"\npairs = "others"\n'
    )
    free = dop("simulate", "g.json", "a.json", "-t", "m.toml", "--no-limit-memory", "--json").json()
    assert (free["makespan_s"], free["lower_bound_s"]) == (1, 1)
    (files / "a.json").write_text('{"format": "doppler-assignment", "version": 1, "devices": [1]}')
    limited = dop("simulate", "g.json", "a.json", "-t", "m.toml", "--json").json()
    assert (limited["makespan_s"], limited["lower_bound_s"]) == (10, 10)
    assert dop("show", "g.json", "-t", "m.toml", "--json").json()["lower_bounds_s"]["memory"] == 10


def test_simulate_takes_the_topology_the_assignment_was_made_for(dop: Dop, files: Path) -> None:
    dop("place", "graph.json", "--topology", "v100x8", "-p", "random", "-o", "a.json")
    implied = dop("simulate", "graph.json", "a.json", "--json").json()
    assert implied["topology"] == "v100x8"


def test_import_then_simulate_gives_the_authors_time(dop: Dop, tmp_path: Path) -> None:
    """2 s, a transfer of 8 s, 3 s, then 4 s on the same device."""
    (tmp_path / "chain.txt").write_text(REFERENCE_TEXT)
    imported = dop("import", "chain.txt", "-o", "g.json", "--json").json()
    assert (imported["vertices"], imported["inputs"], imported["edges"]) == (4, 1, 2)
    (tmp_path / "a.json").write_text(
        '{"format": "doppler-assignment", "version": 1, "devices": [null, 0, 1, 1]}'
    )
    report = dop("simulate", "g.json", "a.json", "--topology", "reference:4", "--json").json()
    assert report["makespan_s"] == 2 + 8 + 3 + 4


def test_import_for_people(dop: Dop, tmp_path: Path) -> None:
    (tmp_path / "chain.txt").write_text(REFERENCE_TEXT)
    result = dop("import", "chain.txt", "--format", "reference-text", "-o", "g.json")
    assert result.out == "g.json: 4 vertices (1 inputs), 3 tensors, 2 edges\n"


def test_show_a_graph(dop: Dop, files: Path) -> None:
    report = dop("show", "graph.json", "--json").json()
    graph = read_graph(files / "graph.json")
    assert (report["vertices"], report["assigned"], report["depth"]) == (28, 20, 4)
    assert sum(report["widths"]) == 20
    assert sum(report["kinds"].values()) == 20
    assert report["flops"] == graph.flops.sum()
    assert report["lower_bound_s"] == lower_bounds(graph, Topology.preset("p100x4")).best_s
    assert report["parallelism"] >= 1
    shown = dop("show", "graph.json", "--topology", "v100x8").out
    assert "on v100x8: parallelism" in shown
    assert "depth 4" in shown


def test_show_a_graph_with_its_own_costs(dop: Dop, tmp_path: Path) -> None:
    (tmp_path / "chain.txt").write_text(REFERENCE_TEXT)
    report = dop("show", "chain.txt", "--json").json()
    assert report["topology"] == "reference:4"
    assert report["lower_bound_s"] == 9


def test_show_a_topology_with_contention(dop: Dop, tmp_path: Path) -> None:
    topology = replace(Topology.preset("p100x4"), contention={"elementwise": 1.3})
    write_topology(topology, tmp_path / "shared.json")
    shown = dop("show", "shared.json").out
    assert "kernels where all devices are busy: elementwise ×1.3" in shown


def test_show_a_topology_by_name_and_by_file(dop: Dop, tmp_path: Path) -> None:
    shown = dop("show", "v100x8")
    for word in ("gpu0 … gpu3", "nvlink2", "13.2 GB/s", "78 µs", "calibration"):
        assert word in shown.out
    (tmp_path / "mine.json").write_text(dop("show", "v100x8", "--json").out)
    assert dop("show", "mine.json").out == shown.out
    assert "device0 … device3" in dop("show", "reference:4").out


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("placers", "critical-path"),
        ("workloads", "llama-layer"),
        ("topologies", "p100x4-8gb"),
        ("strategies", "breadth-first"),
        ("formats", "reference-text"),
    ],
)
def test_list(dop: Dop, kind: str, name: str) -> None:
    assert name in dop("list", kind).out
    rows = dop("list", kind, "--json").json()
    assert name in [row["name"] for row in rows]
    assert all(row["description"] for row in rows)
