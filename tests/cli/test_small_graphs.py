"""Graphs with nothing to assign, and with one vertex, through every command."""

import json
from pathlib import Path

import pytest
from command_line import Dop, compare_in_this_process

EMPTY = {
    "format": "doppler-graph",
    "version": 1,
    "name": "small",
    "vertices": {"kind": []},
    "tensors": {"producer": [], "bytes": []},
    "edges": {"tensor": [], "reader": []},
}
GRAPHS = {
    "empty": EMPTY,
    "empty with costs": EMPTY
    | {
        "vertices": {"kind": [], "exec_s": []},
        "tensors": {"producer": [], "bytes": [], "transfer_s": []},
    },
    "inputs only": EMPTY
    | {"vertices": {"kind": ["input"]}, "tensors": {"producer": [0], "bytes": [8]}},
    "one vertex": EMPTY | {"vertices": {"kind": ["matmul"], "flops": [1e9], "bytes": [1e6]}},
}
ONE_DEVICE = """
format = "doppler-topology"
version = 1
name = "one"
[[devices]]
name = "cpu"
flops_per_s = 1e9
memory_bytes = 1e9
"""


@pytest.fixture(params=GRAPHS)
def graph(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "g.json").write_text(json.dumps(GRAPHS[request.param]))
    (tmp_path / "one.toml").write_text(ONE_DEVICE)
    return "g.json"


@pytest.mark.parametrize("topology", ["p100x4", "p100x4-8gb", "one.toml"])
def test_place_simulate_and_show(dop: Dop, graph: str, topology: str) -> None:
    placed = dop("place", graph, "-t", topology, "--budget", "0.1", "-o", "a.json", "--json")
    assert placed.code == 0, placed.err
    assert placed.json()["gap"] == 0
    simulated = dop("simulate", graph, "a.json", "-t", topology, "-o", "t.json", "--json")
    assert simulated.json()["makespan_s"] == placed.json()["makespan_s"]
    for command in (
        ("place", graph, "-t", topology, "-p", "cp-sat", "--budget", "0.1"),
        ("simulate", graph, "a.json", "-t", topology, "--exec-noise", "0.1", "--repeat", "2"),
        ("execute", graph, "a.json", "-t", topology, "--backend", "null"),
        ("show", graph, "-t", topology),
        ("show", graph, "-t", topology, "--json"),
        ("show", "t.json"),
        ("show", "t.json", "--json"),
    ):
        result = dop(*command)
        assert result.code == 0, f"{command}: {result.err}"


def test_compare(dop: Dop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare_in_this_process(monkeypatch)
    (tmp_path / "g.json").write_text(json.dumps(EMPTY))
    compared = dop("compare", "g.json", "--budget", "0.1", "--seeds", "1", "--json")
    assert compared.code == 0, compared.err
    rows = compared.json()
    assert [row["error"] for row in rows] == [""] * len(rows)
    assert {(row["makespan_s"], row["gap"], row["mean_s"]) for row in rows} == {(0, 0, 0)}
    assert "lower bound" in dop("compare", "g.json", "--placers", "single,auto").out
