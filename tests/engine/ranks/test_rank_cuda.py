"""GPUs of several processes: made of threads everywhere, and real where there is one."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engine.fake_cuda import machine as gpu_machine  # noqa: E402
from engine.fake_cuda import parts  # noqa: E402
from engine.ranks.jobs import (  # noqa: E402
    MODES,
    Case,
    Job,
    check_outputs,
    random_cases,
    run_jobs,
)
from engine.running import assign, workload  # noqa: E402
from engine.two_outputs import SIZE, expected_outputs, two_outputs  # noqa: E402

from doppler.engine.backends.addresses import addresses  # noqa: E402
from doppler.engine.config import EngineConfig  # noqa: E402
from doppler.engine.ranks.nccl import refusal  # noqa: E402
from doppler.errors import ConfigError, EngineError, UnknownNameError  # noqa: E402
from doppler.sharding.evaluate import evaluate_graph  # noqa: E402

EXAMPLES = int(os.environ.get("RANK_EXAMPLES", "6"))
THREADS = {"backend": "cuda", "fake": True}
NCCL: Case = {"mode": "fixed", "config": {"transport": "nccl"}}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def on_gpus(case: Case, where: list[str]) -> Case:
    """A case with its devices at these addresses."""
    pairs = zip(case["topology"].devices, where, strict=True)
    devices = tuple(replace(device, address=address) for device, address in pairs)
    return case | {"topology": replace(case["topology"], devices=devices)}


def piece_cases() -> tuple[list[Case], dict[str, Any]]:
    """Pieces on four devices, in all ways; and what they compute."""
    graph, x = two_outputs(), torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    case: Case = {"graph": graph, "inputs": {"x": x}, "topology": gpu_machine(parts(4))}
    ways: list[Case] = [*({"mode": mode} for mode in MODES), NCCL]
    given = [case | {"repeats": 2, "assignment": assign(graph, 4, n)} for n in range(3)]
    return [each | way for each in given for way in ways], expected_outputs(x)


@pytest.fixture(scope="module")
def jobs() -> dict[str, Job]:
    """Two ranks with two parts of one GPU each, or with two GPUs on a host of their own."""
    cases = random_cases(4, EXAMPLES)
    parted = [on_gpus(case, parts(4)) for case in cases]
    hosts = [f"host{d // 2}/cuda:{d % 2}" for d in range(4)]
    graph, inputs, _ = workload("ffnn", 2)
    case: Case = {"graph": graph, "inputs": inputs, "mode": "fixed", "repeats": 1}
    case |= {"assignment": assign(graph, 2), "topology": gpu_machine(parts(2))}
    twice = on_gpus(case, ["cuda:0", "cuda:0"])
    dying = case | {"dies": 1, "after_s": 0.2, "signal": signal.SIGKILL, "repeats": 100_000}
    return {
        "gloo": Job(2, [*parted, *(on_gpus(case, hosts) for case in cases[:3])], THREADS),
        "nccl": Job(2, [case | NCCL for case in parted], THREADS),
        "pieces": Job(2, piece_cases()[0], THREADS),
        "nccl on cpu": Job(2, [case | NCCL]),
        "null": Job(2, [case], {"backend": "null"}),
        "overlap": Job(2, [twice], THREADS),
        **{f"dies {mode}": Job(2, [dying | {"mode": mode}], THREADS) for mode in MODES},
    }


@pytest.fixture(scope="module")
def found(jobs: dict[str, Job], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The outcomes of all jobs."""
    outcomes = run_jobs(tmp_path_factory.mktemp("jobs"), *jobs.values())
    return dict(zip(jobs, outcomes, strict=True))


@pytest.mark.parametrize("transport", ["gloo", "nccl"])
def test_outputs_are_those_of_one_process(
    jobs: dict[str, Job], found: dict[str, list[Any]], transport: str
) -> None:
    assert check_outputs([jobs[transport]], [found[transport]]) > EXAMPLES // 3


def test_pieces(found: dict[str, list[Any]]) -> None:
    expected = piece_cases()[1]
    for outputs, *rest in found["pieces"][0]:
        assert not isinstance(outputs, str), (outputs, rest)
        for name, value in expected.items():
            torch.testing.assert_close(outputs[name], value)


@pytest.mark.parametrize("mode", MODES)
def test_a_rank_that_dies_ends_the_run_of_all(found: dict[str, list[Any]], mode: str) -> None:
    first, second = found[f"dies {mode}"]
    assert second is None
    name, message = first[-1]
    assert name == "EngineError"
    assert "rank 1 on host" in message


def test_what_cannot_be_is_said(found: dict[str, list[Any]]) -> None:
    on_cpu, on_null, overlap = (found[name][0][0] for name in ("nccl on cpu", "null", "overlap"))
    assert "transport `nccl` is for GPUs" in on_cpu[1]
    assert "backends cpu and cuda, not on `null`" in on_null[1]
    assert "`d0` and `d1` overlap" in overlap[1]
    with pytest.raises(ConfigError, match="mode must be `fixed`"):
        EngineConfig(transport="nccl")
    with pytest.raises(UnknownNameError, match="no transport named `mpi`"):
        EngineConfig(transport="mpi")


def test_why_nccl_refuses() -> None:
    text = "NCCL error in: ProcessGroupNCCL.cpp:94, invalid usage\nLast error:\n{}\nException"
    shared = refusal(
        text.format("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1")
    )
    assert shared.message == "NCCL needs a GPU for each process, and two share one"
    assert "--transport gloo" in str(shared.hint)
    assert refusal(text.format("no network")).message == "NCCL cannot be used: no network"
    assert refusal("broken").message == "NCCL cannot be used: broken"


def test_addresses_of_some_devices() -> None:
    topology = gpu_machine(["cuda:5", "cuda:0", "cuda:1"])
    assert [address.gpu for address in addresses(topology, 2, [1, 2])] == [0, 1]
    with pytest.raises(EngineError, match="GPU 5, and the machine has 2"):
        addresses(topology, 2)


@needs_gpu
def test_two_ranks_share_a_gpu(tmp_path: Path) -> None:
    cases = [on_gpus(case, parts(4)) for case in random_cases(4, 8)]
    graph, inputs, _ = workload("ffnn", 4)
    case: Case = {"graph": graph, "inputs": inputs, "topology": gpu_machine(parts(4))}
    case |= {"assignment": assign(graph, 4), "repeats": 3}
    runs = [case | {"mode": mode} for mode in MODES]
    jobs = [Job(2, [*runs, *cases], {"backend": "cuda"})]
    ((rank0, _),) = run_jobs(tmp_path, *jobs)
    for each, (outputs, *rest) in zip([*runs, *cases], rank0, strict=True):
        if outputs == "OutOfMemoryError" or "evicts a tensor on one rank" in str(rest):
            continue
        assert isinstance(outputs, dict), (outputs, rest)
        for name, value in evaluate_graph(each["graph"], each["inputs"]).items():
            np.testing.assert_allclose(outputs[name], value, rtol=1e-2, atol=1e-2)
