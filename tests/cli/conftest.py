from pathlib import Path

import numpy as np
import pytest
from command_line import Dop, runner

from doppler.assignment import Assignment, write_assignment
from doppler.graph import write_graph
from doppler.programs import random_dag


@pytest.fixture(autouse=True)
def _silent_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """No command says that kernels are compiled, whether or not they have been before."""
    monkeypatch.setattr("doppler.cli.output.COMPILING_PATIENCE_S", 3600.0)


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


@pytest.fixture
def fork(tmp_path: Path) -> str:
    """The name of a graph file: a(2) → b(3), a → c(3), transfers of 1 s.

    6 s on reference:2, as a solver can prove; the bounds that know no transfers say 5.
    """
    (tmp_path / "fork.json").write_text(
        '{"format": "doppler-graph", "version": 1, "name": "fork", '
        '"vertices": {"kind": ["matmul", "matmul", "matmul"], "exec_s": [2, 3, 3]}, '
        '"tensors": {"producer": [0], "bytes": [1], "transfer_s": [1]}, '
        '"edges": {"tensor": [0, 0], "reader": [1, 2]}}'
    )
    return "fork.json"
