"""`--cold`, and the memory that devices take, in `dop place`, `dop simulate` and `dop execute`."""

from pathlib import Path

import pytest
from command_line import Dop

from doppler.graph import GraphBuilder, write_graph
from doppler.topology import Topology, write_topology


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """graph.json, two vertices that read 8 bytes of weights each, and host.json."""
    b = GraphBuilder("weights")
    for i in range(2):
        w = b.input(f"w{i}", output_bytes=8, kind="resident")
        b.op(f"v{i}", "matmul", reads=[w], output_bytes=2, exec_s=1, temporary_bytes=3)
    write_graph(b.build(), tmp_path / "graph.json")
    topology = Topology.uniform(
        2, bandwidth_bytes_per_s=8, host_bandwidth_bytes_per_s=2, memory_bytes=20, name="host"
    )
    write_topology(topology, tmp_path / "host.json")
    return tmp_path


def test_place_shows_a_cold_start_beside_the_warm_one(dop: Dop, weights: Path) -> None:
    place = ("place", "graph.json", "-t", "host.json", "-p", "round-robin")
    shown = dop(*place).out
    assert "makespan 1 s" in shown
    assert "a cold start, which loads resident inputs first, takes 5 s" in shown
    assert "13 B of 20 B" in shown
    report = dop(*place, "--json").json()
    assert (report["makespan_s"], report["cold_makespan_s"]) == (1, 5)
    assert [d["peak_bytes"] for d in report["devices"]] == [13, 13]


@pytest.mark.parametrize("mode", ["dynamic", "fixed"])
def test_a_cold_start(dop: Dop, weights: Path, mode: str) -> None:
    place = ("place", "graph.json", "-t", "host.json", "-p", "round-robin", "--mode", mode)
    report = dop(*place, "--cold", "-o", "cold.json", "--json").json()
    assert (report["makespan_s"], report["lower_bound_s"]) == (5, 5)
    assert "cold_makespan_s" not in report
    dop(*place, "-o", "warm.json")
    for name in ("cold.json", "warm.json"):
        simulate = ("simulate", "graph.json", name, "-t", "host.json", "--mode", mode, "--cold")
        report = dop(*simulate, "--json").json()
        assert report["makespan_s"] == 5
        assert report["bytes_by_class"]["host"] == 16
        assert (report["peak_bytes"], report["memory_bytes"]) == ([13, 13], [20, 20])
        assert "13 B of 20 B" in dop(*simulate).out


@pytest.mark.parametrize("mode", ["dynamic", "fixed"])
def test_a_cold_start_of_the_engine(dop: Dop, weights: Path, mode: str) -> None:
    pytest.importorskip("torch")
    dop("place", "graph.json", "-t", "host.json", "-p", "round-robin", "-o", "a.json")
    execute = ("execute", "graph.json", "a.json", "-t", "host.json", "--backend", "null")
    for cold in (True, False):
        options = ["--cold"] if cold else []
        report = dop(*execute, "--mode", mode, "--repeat", "1", *options, "--json").json()
        assert report["bytes_by_class"].get("host", 0) == 16 * cold
        assert report["transfers"] == 2 * cold
        assert report["predicted_s"] == (5 if cold else 1)
        assert report["peak_bytes"] == [13, 13]


def test_a_cold_start_needs_links_to_the_host(dop: Dop, weights: Path) -> None:
    result = dop("place", "graph.json", "-t", "reference:2", "--cold")
    assert result.code == 2
    assert "--cold needs links between the host and the devices" in result.err


def test_weights_that_do_not_fit_are_named(dop: Dop, weights: Path) -> None:
    topology = Topology.uniform(1, bandwidth_bytes_per_s=8, memory_bytes=20, name="one")
    write_topology(topology, weights / "one.json")
    result = dop("place", "graph.json", "-t", "one.json", "-p", "single")
    assert result.code == 2
    words = "; inputs take 16 of its 20 bytes, the largest: `w0` 8, `w1` 8"
    assert "needs 5 bytes, 4 are free, and nothing that runs will free more" + words in result.err
