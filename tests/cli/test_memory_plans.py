"""Memory plans in `dop place`, `dop simulate` and `dop show`."""

from pathlib import Path

import pytest
from command_line import Dop

from doppler.assignment import read_assignment
from doppler.graph import GraphBuilder, write_graph
from doppler.topology import Topology, write_topology


@pytest.fixture
def streaming(tmp_path: Path) -> Path:
    """graph.json, three vertices that read 8 bytes of weights each, and small.json."""
    b = GraphBuilder("streaming")
    for i in range(3):
        w = b.input(f"w{i}", output_bytes=8, kind="resident")
        b.op(f"v{i}", "matmul", reads=[w], output_bytes=0, exec_s=1)
    write_graph(b.build(), tmp_path / "graph.json")
    topology = Topology.uniform(1, host_bandwidth_bytes_per_s=8, memory_bytes=8, name="small")
    write_topology(topology, tmp_path / "small.json")
    return tmp_path


SENTENCE = "a memory plan makes it fit: 0 B are moved to the host, 16 B from it, in 2 moves"
MOVED = {"moves": 2, "evicted_bytes": 0, "loaded_bytes": 16}


@pytest.mark.parametrize("mode", ["dynamic", "fixed"])
def test_commands_tell_what_is_moved(dop: Dop, streaming: Path, mode: str) -> None:
    place = ("place", "graph.json", "-t", "small.json", "-p", "single", "--mode", mode)
    shown = dop(*place, "-o", "a.json").out
    assert SENTENCE in " ".join(shown.split())
    assert "8 B of 8 B" in shown
    assert read_assignment("a.json").memory is not None
    report = dop(*place, "--json").json()
    assert (report["makespan_s"], report["memory_plan"]) == (5, MOVED)
    assert report["cold_makespan_s"] == 6
    simulate = ("simulate", "graph.json", "a.json", "-t", "small.json", "--mode", mode)
    assert SENTENCE in " ".join(dop(*simulate, "-o", "t.json").out.split())
    report = dop(*simulate, "--json").json()
    assert (report["makespan_s"], report["memory_plan"]) == (5, MOVED)
    assert (report["peak_bytes"], report["bytes_by_class"]["host"]) == ([8], 16)
    assert dop(*simulate, "--cold", "--json").json()["makespan_s"] == 6
    show = ("show", "a.json", "--graph", "graph.json", "-t", "small.json")
    assert SENTENCE in " ".join(dop(*show).out.split())
    assert dop(*show, "--json").json()["memory_plan"] == MOVED
    timeline = dop("show", "t.json").out
    assert " load " in timeline
    assert " evict " in timeline
