from pathlib import Path

import numpy as np
import pytest
from command_line import Dop, runner

from doppler.assignment import Assignment, write_assignment
from doppler.graph import write_graph
from doppler.programs import random_dag
from doppler.sim import simulate
from doppler.topology import Topology


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    """Compile the simulator first, so that no command has to say that it does."""
    graph, topology = random_dag(vertices=2, depth=1), Topology.preset("p100x4")
    simulate(graph, topology, Assignment(np.where(graph.is_input, -1, 0)))


@pytest.fixture
def dop(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Dop:
    """Runs `dop` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return runner(capsys, monkeypatch)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with graph.json and assignment.json."""
    graph = random_dag(vertices=20, depth=4, seed=0)
    write_graph(graph, tmp_path / "graph.json")
    devices = np.where(graph.is_input, -1, np.arange(graph.num_vertices) % 4)
    write_assignment(Assignment(devices), tmp_path / "assignment.json")
    return tmp_path
