"""`dop execute`: what it prints and writes, and what it refuses."""

import importlib.util
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Dop

pytest.importorskip("torch")

from doppler.assignment import Assignment, write_assignment
from doppler.cli.executing import write_arrays
from doppler.errors import ConfigError
from doppler.graph import write_graph
from doppler.problem import Problem
from doppler.programs import ffnn, random_inputs
from doppler.scheduler.places import memory_places
from doppler.scheduler.planning import plan_memory
from doppler.sharding import shard
from doppler.sharding.evaluate import evaluate_graph
from doppler.sim import SimConfig, Simulator
from doppler.topology import Topology, write_topology
from doppler.trace import read_trace

RUN = ("execute", "graph.json", "assignment.json", "-t", "cpu2")
PROGRAM = ffnn(batch=16, features=8, hidden=32, classes=8, dtype="float32")
GRAPH = shard(PROGRAM, 4)
ASSIGNMENT = Assignment(np.where(GRAPH.is_input, -1, np.arange(GRAPH.num_vertices) % 2))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with graph.json, which has kernels, and assignment.json, for two devices."""
    write_graph(GRAPH, tmp_path / "graph.json")
    write_assignment(ASSIGNMENT, tmp_path / "assignment.json")
    return tmp_path


def test_the_makespan_comes_first_and_the_trace_is_written(dop: Dop, folder: Path) -> None:
    report = dop(*RUN, "--repeat", "3", "-o", "t.json", "--json").json()
    keys = ["makespan_s", "spread_s", "makespans_s", "predicted_s", "error"]
    assert list(report)[:5] == keys
    assert len(report["makespans_s"]) == 3
    assert report["makespan_s"] == pytest.approx(np.mean(report["makespans_s"]))
    assert report["spread_s"] == pytest.approx(np.std(report["makespans_s"]))
    simulated = Simulator(Topology.preset("cpu2")).run(GRAPH, ASSIGNMENT)
    assert report["predictions_s"]["dynamic"] == simulated.makespan_s
    assert report["predicted_s"] == min(report["predictions_s"].values())
    assert report["predictions_s"][report["mode"]] == report["predicted_s"]
    assert report["error"] == report["predicted_s"] / report["makespan_s"] - 1
    assert report["bytes_moved"] == simulated.bytes_moved
    assert report["backend"] == "cpu"
    assert len(report["utilization"]) == len(report["peak_bytes"]) == 2
    trace = read_trace(folder / "t.json")
    assert trace.makespan_s == sorted(report["makespans_s"])[1]
    assert len(trace.vertex) == len(simulated.vertex)
    assert "makespan" in dop("show", "t.json").out


def test_a_memory_plan_runs(dop: Dop, folder: Path) -> None:
    """Each device has less memory than what its vertices read and make."""
    machine = Topology.uniform(
        2,
        flops_per_s=1e11,
        bandwidth_bytes_per_s=1e9,
        memory_bytes=1792,
        host_bandwidth_bytes_per_s=1e9,
    )
    write_topology(machine, folder / "small.json")
    problem = Problem(GRAPH, machine)
    planned = plan_memory(problem, ASSIGNMENT)
    write_assignment(planned, folder / "planned.json")
    inputs = random_inputs(PROGRAM, seed=3)
    write_arrays(inputs, folder / "in.npz")
    command = ("execute", "graph.json", "planned.json", "-t", "small.json", "--inputs", "in.npz")
    for mode in ("dynamic", "fixed"):
        found = dop(*command, "--mode", mode, "--outputs", "out.npz", "--json")
        report = found.json()
        assert report["peak_bytes"] == memory_places(GRAPH, machine, planned).top
        assert max(report["peak_bytes"]) <= 1792
        assert report["bytes_by_class"]["host"] > 0
        with np.load(folder / "out.npz") as arrays:
            for name, value in evaluate_graph(GRAPH, inputs).items():
                assert np.allclose(arrays[name], value, atol=1e-5)
        (folder / "out.npz").unlink()
    refused = dop("execute", "graph.json", "assignment.json", "-t", "small.json")
    assert refused.code == 2
    assert "memory plan" in refused.err


def test_for_people(dop: Dop, folder: Path) -> None:
    result = dop(*RUN, "--repeat", "2", "--outputs", "out.npz")
    assert (result.code, result.err) == (0, "")
    for word in (
        "makespan",
        "±",
        "over 2 runs",
        "predicted",
        "%",
        "core1",
        "same-group",
        "core0 run",
    ):
        assert word in result.out
    assert "wrote out.npz" in result.out
    assert "over 1 run;" in dop(*RUN, "--repeat", "1").out


def test_inputs_and_outputs_are_arrays_by_name(dop: Dop, folder: Path) -> None:
    inputs = random_inputs(PROGRAM, seed=3)
    np.savez(folder / "in.npz", **inputs)
    assert dop(*RUN, "--inputs", "in.npz", "--outputs", "out.npz").code == 0
    expected = evaluate_graph(GRAPH, inputs)
    with np.load(folder / "out.npz") as found:
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert found[name].dtype == value.dtype
            assert np.allclose(found[name], value, atol=1e-6)


def test_options_are_passed_on_to_the_simulator_too(dop: Dop, folder: Path) -> None:
    options = ("--strategy", "critical-path", "--bulk-synchronous", "--no-limit-memory")
    report = dop(*RUN, *options, "--repeat", "1", "--warm-up", "0", "--json").json()
    config = SimConfig(strategy="critical-path", synchronous=True, limit_memory=False)
    expected = Simulator(Topology.preset("cpu2"), config).run(GRAPH, ASSIGNMENT).makespan_s
    assert report["predicted_s"] == expected


def test_a_mode_can_be_asked_for(dop: Dop, folder: Path) -> None:
    for mode in ("dynamic", "fixed"):
        report = dop(*RUN, "--mode", mode, "--repeat", "1", "--json").json()
        assert (report["mode"], [*report["predictions_s"]]) == (mode, [mode])
    assert "mode fixed\n" in dop(*RUN, "--mode", "fixed").out
    assert ", predicted to be the faster: dynamic" in dop(*RUN).out
    assert dop(*RUN, "--bulk-synchronous", "--json").json()["mode"] == "dynamic"


def test_the_topology_may_come_with_the_assignment(dop: Dop, folder: Path) -> None:
    dop("place", "graph.json", "-t", "cpu2", "-p", "single", "-o", "a.json")
    assert dop("execute", "graph.json", "a.json", "--json").json()["topology"] == "cpu2"


def test_without_speeds_there_is_no_prediction(dop: Dop, folder: Path) -> None:
    run = ("execute", "graph.json", "assignment.json", "-t", "reference:2", "--repeat", "1")
    result = dop(*run, "--json")
    assert (result.json()["predicted_s"], result.json()["error"]) == (None, None)
    assert "no prediction: topology `reference:2` has no speeds" in result.err
    assert "predicted" not in dop(*run).out


def test_the_null_backend_runs_any_graph(dop: Dop, files: Path) -> None:
    run = ("execute", "graph.json", "assignment.json", "-t", "p100x4", "--backend", "null")
    assert dop(*run, "--json").json()["utilization"] == [0, 0, 0, 0]


def test_help_has_an_example(dop: Dop) -> None:
    assert "Example: dop execute graph.json" in dop("execute", "--help").out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--backend", "gpu"], ["no backend named `gpu`", "hint: did you mean", "cuda, null"]),
        (["--strategy", "fif"], ["no strategy named `fif`", "hint: did you mean `fifo`"]),
        (["--mode", "fix"], ["no mode named `fix`", "hint: did you mean `fixed`"]),
        (["--mode", "fixed", "--bulk-synchronous"], ["no barriers"]),
        (["--timeout", "0"], ["timeout_s is 0.0"]),
        (["--transport", "mpi"], ["no transport named `mpi`"]),
        (
            ["--transport", "nccl", "--mode", "dynamic"],
            ["mode must be `fixed`", "hint: add `--mode fixed`"],
        ),
        (["--transport", "nccl"], ["this is the only one", "hint: start several with torchrun"]),
        (["--repeat", "0"], ["--repeat"]),
        (["--inputs", "nowhere.npz"], ["no file `nowhere.npz`"]),
        (["--inputs", "graph.json"], ["`graph.json` is not an .npz file of arrays", "hint: write"]),
        (["--inputs", "objects.npz"], ["`objects.npz` is not an .npz file of arrays"]),
        (["--inputs", "array.npy"], ["`array.npy` is not an .npz file of arrays"]),
        (["--inputs", "empty.npz"], ["input `X` is missing", "hint: given: none"]),
        (["--inputs", "wide.npz"], ["input `X` is float32 (16, 9), expected float32 (16, 8)"]),
        (["--backend", "null", "--outputs", "o.npz"], ["backend `null` computes nothing"]),
        (["--outputs", "nowhere/o.npz"], ["cannot write `nowhere/o.npz`", "no folder"]),
        (["-o", "nowhere/t.json"], ["cannot write `nowhere/t.json`"]),
        (["-t", "v100x8"], []),
    ],
)
def test_mistakes(dop: Dop, folder: Path, options: list[str], words: list[str]) -> None:
    inputs = random_inputs(PROGRAM)
    np.savez(folder / "empty.npz")
    np.savez(folder / "wide.npz", **inputs | {"X": np.zeros((16, 9), np.float32)})
    np.savez(folder / "objects.npz", X=np.array([{}, None], object))
    np.save(folder / "array.npy", inputs["X"])
    before = sorted(path.name for path in folder.iterdir())
    result = dop(*RUN, *options)
    if not words:
        assert result.code == 0  # more devices than it needs are no mistake
        return
    assert result.code == 2
    assert result.out == "" or "nowhere" in " ".join(options)
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err
    assert sorted(path.name for path in folder.iterdir()) == before


def test_an_encrypted_archive_is_refused(dop: Dop, folder: Path) -> None:
    np.savez(folder / "x.npz", **random_inputs(PROGRAM))
    data = bytearray((folder / "x.npz").read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1  # the flag in the archive's directory
    (folder / "x.npz").write_bytes(data)
    result = dop(*RUN, "--inputs", "x.npz")
    assert result.code == 2
    assert "`x.npz` is not an .npz file of arrays" in result.err


def test_an_input_that_is_larger_than_memory(dop: Dop, folder: Path) -> None:
    text = (folder / "graph.json").read_text()
    assert '"shapes": [[16, 8]]' in text
    for size in (2**61, 2**63):
        huge = text.replace('"shapes": [[16, 8]]', f'"shapes": [[16, {size}]]', 1)
        (folder / "graph.json").write_text(huge)
        result = dop(*RUN)
        assert result.code == 2
        assert "Traceback" not in result.err


@pytest.mark.parametrize("name", ["a\0b", "x" * 70_000])
def test_a_result_whose_name_an_archive_cannot_hold(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has a name that no"):
        write_arrays({name: np.zeros(1)}, tmp_path / "r.npz")
    assert list(tmp_path.iterdir()) == []


def test_graphs_without_kernels_are_refused(dop: Dop, files: Path) -> None:
    result = dop("execute", "graph.json", "assignment.json", "-t", "p100x4")
    assert result.code == 2
    assert "graph `random-dag-20` has no kernels to run\nhint: what `dop shard` makes" in result.err


def test_an_assignment_that_does_not_fit(dop: Dop, folder: Path) -> None:
    result = dop("execute", "graph.json", "assignment.json", "-t", "reference:1")
    assert result.code == 2
    assert "device" in result.err
    result = dop("execute", "graph.json", "assignment.json")
    assert result.code == 2
    assert "no topology is given\nhint: add --topology" in result.err


def test_without_torch_it_says_which_extra_brings_it(
    dop: Dop, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "torch" else real(name, *a)
    )
    for name in [name for name in sys.modules if name.startswith("doppler.engine")]:
        monkeypatch.delitem(sys.modules, name)
    result = dop(*RUN)
    assert result.code == 2
    assert result.err == (
        "error: running on real devices needs `torch`\nhint: pip install doppler-placement[torch]\n"
    )


def test_the_command_line_starts_without_the_engine() -> None:
    code = "import sys, doppler.cli.main; print({'torch', 'doppler.engine'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "set()\n"


def test_ctrl_c_exits_130_and_leaves_no_file(
    dop: Dop, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from doppler.engine.backends.cpu import CpuBackend

    wait, calls = CpuBackend.wait, []

    def interrupted(backend: CpuBackend, timeout_s: float) -> Any:
        calls.append(timeout_s)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return wait(backend, timeout_s)

    monkeypatch.setattr(CpuBackend, "wait", interrupted)
    before, threads = sorted(folder.iterdir()), threading.enumerate()
    result = dop(*RUN, "-o", "t.json", "--outputs", "o.npz")
    assert (result.code, result.out, result.err) == (130, "", "interrupted\n")
    assert sorted(folder.iterdir()) == before
    assert threading.enumerate() == threads
