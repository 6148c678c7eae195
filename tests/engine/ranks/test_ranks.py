"""Several processes compute what one does."""

import os
import shlex
import signal
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engine.ranks.jobs import (  # noqa: E402
    MODES,
    ROOT,
    Case,
    Job,
    check_outputs,
    random_cases,
    run_jobs,
)
from engine.running import machine, workload  # noqa: E402

import doppler as dp  # noqa: E402
from doppler.assignment import Assignment  # noqa: E402
from doppler.engine.ranks.dealing import ranks_of, split_address  # noqa: E402
from doppler.errors import EngineError  # noqa: E402

EXAMPLES = int(os.environ.get("RANK_EXAMPLES", "16"))
KILLS = int(os.environ.get("RANK_KILLS", "4"))


def test_outputs_are_those_of_one_process(tmp_path: Path) -> None:
    jobs = [Job(size, random_cases(size, EXAMPLES)) for size in (2, 4)]
    assert check_outputs(jobs, run_jobs(tmp_path, *jobs)) > EXAMPLES // 2


def test_a_rank_that_dies_or_hangs_ends_the_run_of_all(tmp_path: Path) -> None:
    """At any moment; the next job runs."""
    graph, inputs, expected = workload("ffnn", 2)
    devices = np.where(graph.is_input, -1, np.arange(graph.num_vertices) % 3)
    case: Case = {"graph": graph, "inputs": inputs, "topology": machine(3), "mode": "dynamic"}
    case |= {"assignment": Assignment(devices), "repeats": 100_000}
    jobs, rng = list[Job](), np.random.default_rng(0)
    for number in range(KILLS):
        dying = {"dies": number % 3, "after_s": float(rng.uniform(0.01, 0.3))}
        jobs.append(Job(3, [case | dying | {"mode": MODES[number % 2], "signal": signal.SIGKILL}]))
    hanging = case | {"dies": 1, "after_s": 0.05, "signal": signal.SIGSTOP}
    jobs += [Job(3, [hanging], {"timeout_s": 0.5}), Job(3, [case | {"repeats": 1}])]
    *killed, hung, last = run_jobs(tmp_path, *jobs)
    for number, outcomes in enumerate([*killed, hung]):
        ended = 1 if outcomes is hung else number % 3
        assert outcomes[ended] is None
        for rank in {0, 1, 2} - {ended}:
            name, message = outcomes[rank][-1]
            assert name == "EngineError"
            assert f"rank {ended} on host" in message
            assert outcomes is not hung or "does not answer" in message, message
    for name, value in expected.items():
        np.testing.assert_allclose(last[0][0][0][name], value, rtol=1e-5)


def commands(name: str) -> list[list[str]]:
    """What a guide lets torchrun start in two processes."""
    before = "torchrun --nproc-per-node 2 -m doppler "
    lines = (ROOT / "docs" / "guides" / name).read_text().splitlines()
    return [shlex.split(line.removeprefix(before)) for line in lines if line.startswith(before)]


def command_job(command: Sequence[str]) -> Job:
    """As torchrun starts it on two ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return Job(2, more={"command": list(command), "environment": environment})


def test_the_commands_of_the_guides(tmp_path: Path) -> None:
    """The first rank prints, and writes the trace of all, or the run."""
    (execute,), (pretrain, real) = commands("execute.md"), commands("train.md")
    (probe,), (place,) = commands("measure.md"), commands("place.md")
    graph, _, _ = workload("chainmm", 2)
    for number in ("0", "2", "4"):
        (tmp_path / number).mkdir()
        dp.write_graph(graph, tmp_path / number / "graph.json")
    devices = np.where(graph.is_input, -1, np.arange(graph.num_vertices) % 2)
    dp.write_assignment(Assignment(devices), tmp_path / "0" / "assignment.json")
    shorter = ["--seconds", "0.1", "--threads", "1", "--seed", "0"]
    few = ["--problems", "2", "--max-vertices", "40", "--validation", "0"]
    given = [execute, [*pretrain, *shorter, *few], [*real, *shorter]]
    given.append([*probe, "--seconds", "0.5", "--devices", "1"])
    given.append([*place, "--budget", "0.1"])
    ran, *trained, probed, placed = run_jobs(tmp_path, *map(command_job, given))
    assert "makespan" in ran[0]
    assert ran[1] == ""
    trace = dp.read_trace(tmp_path / "0" / "all.trace.json")
    assert len(trace.vertex) == len(graph.assigned) + int(trace.is_transfer.sum())
    assert trace.is_transfer.any()
    for number, (first, second) in enumerate(trained, 1):
        (run,) = (tmp_path / str(number) / "runs").iterdir()
        assert (run / "policy.safetensors").exists(), first
        assert str(run.name) in first
        assert second == ""
    cluster = dp.read_topology(tmp_path / "3" / "cluster.json")
    assert [d.address.split("/")[0] for d in cluster.devices] == ["host0", "host1"]
    assert all("network" in cluster.links[cluster.route[a, 1 - a]].name for a in (0, 1))
    assert "network" in probed[0]
    assert "annealing on p100x4" in placed[0]
    dp.read_assignment(tmp_path / "4" / "best.json").check(graph, dp.Topology.preset("p100x4"))
    assert probed[1] == placed[1] == ""


def test_devices_are_dealt_out_to_ranks() -> None:
    topology = machine(4)
    named = replace(
        topology,
        devices=tuple(
            replace(device, address=f"h{d // 2}/cpu:{d % 2}")
            for d, device in enumerate(topology.devices)
        ),
    )
    assert ranks_of(topology, 1) == [0] * 4
    assert ranks_of(topology, 2) == ranks_of(named, 2) == [0, 0, 1, 1]
    assert ranks_of(named, 4) == [0, 1, 2, 3]
    with pytest.raises(EngineError, match="3 processes cannot be shared out to 2 hosts"):
        ranks_of(named, 3)
    with pytest.raises(EngineError, match="the machine has 4 devices for 5 processes"):
        ranks_of(topology, 5)
    assert split_address("cuda:0/1of4") == ("", "cuda:0/1of4")
