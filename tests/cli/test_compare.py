import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from command_line import Dop, compare_in_this_process

from doppler.formats import read_graph
from doppler.placers import make_placer
from doppler.placers.base import cores
from doppler.placers.comparison import _take_cores
from doppler.problem import Problem
from doppler.sim import simulate
from doppler.topology import Topology


def test_compare_sorts_and_repeats_the_simulator(dop: Dop, files: Path) -> None:
    placers = "single,critical-path,annealing"
    rows = dop(
        "compare", "graph.json", "--placers", placers, "--budget", "0.2", "--seeds", "3", "--json"
    ).json()
    makespans = [row["makespan_s"] for row in rows]
    assert makespans == sorted(makespans)
    assert rows[-1]["placer"] == "single"
    graph, topology = read_graph(files / "graph.json"), Topology.preset("p100x4")
    assignment = make_placer("critical-path").place(Problem(graph, topology))
    by_name = {row["placer"]: row for row in rows}
    assert (
        by_name["critical-path"]["makespan_s"] == simulate(graph, topology, assignment).makespan_s
    )
    assert by_name["annealing"]["makespan_s"] <= by_name["critical-path"]["makespan_s"]
    for row in rows:
        assert row["gap"] >= 0
        assert row["std_s"] > 0
        assert row["error"] == ""


def test_all_rows_have_the_best_bound_that_any_placer_found(
    dop: Dop, fork: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ortools")
    compare_in_this_process(monkeypatch)
    placers = ("--placers", "cp-sat,single,heft", "--budget", "3", "--seeds", "1")
    rows = dop("compare", fork, "-t", "reference:2", *placers, "--json").json()
    assert [row["lower_bound_s"] for row in rows] == [6, 6, 6]
    assert {row["placer"]: row["gap"] for row in rows} == {
        "cp-sat": 0,
        "heft": 0,
        "single": pytest.approx(8 / 6 - 1),
    }


@pytest.mark.skipif(not cores(), reason="the system does not tell which cores there are")
def test_processes_share_out_the_cores() -> None:
    for workers in range(1, len(cores()) + 1):
        started = multiprocessing.get_context("spawn").Value("i", 0)
        taken: list[int] = []
        for _ in range(workers):
            with ThreadPoolExecutor(1) as thread:  # which cores a thread may use is its own
                thread.submit(_take_cores, started, workers).result()
                taken += thread.submit(cores).result()
        assert sorted(taken) == cores()


def test_a_placer_that_fails_has_its_error_in_its_row(
    dop: Dop, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_in_this_process(monkeypatch)
    (files / "tight.toml").write_text(
        'format = "doppler-topology"\nversion = 1\nname = "tight"\n'
        '[[devices]]\nname = "small"\nflops_per_s = 1e12\nmemory_bytes = 10\n'
        '[[devices]]\nname = "large"\nflops_per_s = 1e12\nmemory_bytes_per_s = 1e11\n'
        '[[links]]\nname = "l"\nbandwidth_bytes_per_s = 1e9\npairs = "others"\n'
    )
    result = dop("compare", "graph.json", "-t", "tight.toml", "--placers", "single,round-robin")
    assert result.code == 0
    assert "failed" in result.out
    assert "is out of memory" in result.out


def test_compare_refuses_unknown_and_repeated_placers(dop: Dop, files: Path) -> None:
    result = dop("compare", "graph.json", "--placers", "single,hef")
    assert (result.code, result.out) == (2, "")
    assert "no placer named `hef`" in result.err
    assert dop("compare", "graph.json", "--placers", "single,single").code == 2
