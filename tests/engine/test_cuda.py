"""The CUDA backend: on a GPU where there is one, and everywhere on streams made of threads."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from engine.fake_cuda import FakeCuda, install, machine, parts
from engine.running import assert_close, assign, chain, vertex, workload
from engine.two_outputs import SIZE, expected_outputs, two_outputs
from hypothesis import given
from hypothesis import strategies as st
from sharding.test_evaluate import SIZES
from tight import least_bytes

from doppler.engine.backends import cuda, driver, lanes
from doppler.engine.backends.addresses import addresses, parse_address
from doppler.engine.backends.base import Behind, Copy, Exec
from doppler.engine.backends.cuda import CudaBackend
from doppler.engine.backends.driver import Address
from doppler.engine.backends.lanes import chunks
from doppler.engine.backends.registry import make_backend
from doppler.engine.config import EngineConfig
from doppler.engine.engine import Engine
from doppler.errors import EngineError, TopologyError
from doppler.machine.bench import Bench, Sample
from doppler.machine.links import measure_links
from doppler.problem import Problem
from doppler.programs import random_inputs
from doppler.programs.registry import WORKLOADS
from doppler.scheduler.choose import MODES
from doppler.scheduler.places import memory_places
from doppler.scheduler.planning import plan_memory
from doppler.sharding import shard
from doppler.sharding.evaluate import evaluate_graph
from doppler.tasks import enumerate_tasks
from doppler.topology import Host, Link, Topology


class RealCuda:
    """The same questions to a GPU."""

    def block(self, seconds: float) -> None:
        torch.cuda._sleep(int(seconds * 2e9))  # cycles of a clock below 2 GHz

    def used_bytes(self) -> int:
        return torch.cuda.memory_allocated()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = install(monkeypatch.setattr)
    monkeypatch.setattr(Trouble, "launch", staticmethod(fake.launch))
    yield fake
    for stream in fake.streams.values():
        stream.push(None)
        stream.thread.join()


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.fixture(params=["threads", pytest.param("gpu", marks=needs_gpu)])
def gpu(request: pytest.FixtureRequest) -> FakeCuda | RealCuda:
    """What the backend runs on."""
    if request.param == "gpu":
        return RealCuda()
    fake = request.getfixturevalue("fake")
    assert isinstance(fake, FakeCuda)
    return fake


MACHINES = {
    "direct": machine(parts(4), via="direct"),
    "host": machine(parts(4), via="host"),
    "one link of many lanes": machine(parts(4), via="host", lanes=0, slots=2),
    "two ahead": machine(parts(4), via="host", ahead=2),
    "two ahead, direct": machine(parts(4), ahead=2),
    "a whole GPU": machine(["cuda:0"]),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", MACHINES)
@pytest.mark.parametrize("name", ["chainmm", "ffnn", "llama-block", "cholesky"])
def test_outputs_are_those_of_numpy(
    gpu: FakeCuda | RealCuda, where: str, name: str, mode: str
) -> None:
    graph, inputs, expected = workload(name, 4)
    topology = MACHINES[where]
    with Engine(topology, "cuda", EngineConfig(mode=mode)) as engine:
        for seed in range(2):
            assignment = assign(graph, topology.num_devices, seed)
            result = engine.execute(graph, assignment, inputs, repeats=2)
            assert_close(result.outputs, expected)
            assert len(result.trace.begin_s) > 0
            assert 0 < result.trace.makespan_s < 60


@pytest.mark.parametrize("where", ["host", "two ahead, direct", "a whole GPU"])
def test_a_whole_run_as_one_graph(gpu: FakeCuda | RealCuda, where: str) -> None:
    graph, inputs, expected = workload("llama-block", 4)
    topology = MACHINES[where]
    assignment = assign(graph, topology.num_devices)
    with Engine(topology, "cuda", EngineConfig(mode="fixed", capture=True)) as engine:
        engine.load(graph, inputs)
        assert (engine.makespans(graph, assignment, repeats=3, warm_up=1) > 0).all()
        (prepared,) = engine._prepared.values()
        assert_close(prepared.results(engine.backend), expected)
        assert_close(engine.execute(graph, assignment, inputs).outputs, expected)  # with a trace


HOST_MACHINES = {
    "partitions": machine(parts(2), via="host", host_lanes=1),
    "partitions, direct": machine(parts(2), slots=2, ahead=2, host_lanes=2),
    "a whole GPU": machine(["cuda:0"], host_lanes=0),
}


@pytest.mark.parametrize("where", HOST_MACHINES)
def test_links_to_the_host_are_measured(gpu: FakeCuda | RealCuda, where: str) -> None:
    topology = HOST_MACHINES[where]
    samples: list[Sample] = []
    with closing(make_backend("cuda", topology)) as backend:
        found = measure_links(Bench(backend, topology), 0.05, samples)
    assert len(found.host_links) == topology.num_devices
    for link in (found.links[number] for number in found.host_links):
        assert link.bandwidth_bytes_per_s > 0


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", HOST_MACHINES)
def test_inputs_arrive_from_the_host(
    gpu: FakeCuda | RealCuda, where: str, mode: str, cold: bool
) -> None:
    program = WORKLOADS["ffnn"].build(**SIZES["ffnn"], dtype="float32")
    graph = shard(program, 4, inputs="marked")
    graph = graph.cold() if cold else graph
    topology = HOST_MACHINES[where]
    with Engine(topology, "cuda", EngineConfig(mode=mode)) as engine:
        for seed in range(3):
            inputs = random_inputs(program, seed=seed)
            assignment = assign(graph, topology.num_devices, seed)
            result = engine.execute(graph, assignment, inputs, repeats=3)
            assert_close(result.outputs, evaluate_graph(graph, inputs))
            arrived = result.trace.source == topology.num_devices
            assert arrived.sum() >= graph.arrives.sum()


@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", HOST_MACHINES)
@pytest.mark.parametrize("name", ["ffnn", "llama-block"])
def test_memory_plans(
    gpu: FakeCuda | RealCuda, where: str, name: str, mode: str, capture: bool
) -> None:
    """Inputs and results of kernels leave for the host, and come back."""
    if capture and mode != "fixed":
        pytest.skip("only a run in fixed order is captured")
    graph, inputs, expected = workload(name, 4)
    topology = HOST_MACHINES[where]
    size, config = topology.num_devices, EngineConfig(mode=mode, capture=capture)
    for seed in range(2):
        assignment = assign(graph, size, seed)
        limits = [1.3 * least_bytes(graph, assignment.devices, d) for d in range(size)]
        devices = zip(topology.devices, limits, strict=True)
        small = tuple(replace(d, memory_bytes=max(limit, 1024.0)) for d, limit in devices)
        limited = replace(topology, devices=small)
        planned = plan_memory(Problem(graph, limited), assignment)
        assert planned.memory is not None
        assert planned.memory.num_moves > 0
        with Engine(limited, "cuda", config) as engine:
            for _ in range(3):  # the second captures kernels, which runs them
                result = engine.execute(graph, planned, inputs)
                assert_close(result.outputs, expected)
            assert result.peak_bytes.tolist() == memory_places(graph, limited, planned).top
            if capture:
                assert (engine.makespans(graph, planned, repeats=3) > 0).all()
                (prepared,) = engine._prepared.values()
                assert_close(prepared.results(engine.backend), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", MACHINES)
def test_pieces(gpu: FakeCuda | RealCuda, where: str, mode: str) -> None:
    graph, topology = two_outputs(), MACHINES[where]
    with Engine(topology, "cuda", EngineConfig(mode=mode, capture=mode == "fixed")) as engine:
        for seed in range(4):
            x = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(seed))
            assignment = assign(graph, topology.num_devices, seed)
            traced = engine.execute(graph, assignment, {"x": x}, repeats=3).outputs
            for found in (traced, engine.compute(graph, assignment, {"x": x})):
                for name, whole in expected_outputs(x).items():
                    torch.testing.assert_close(found[name], whole)


@pytest.mark.parametrize("mode", MODES)
def test_pieces_on_two_gpus(fake: FakeCuda, mode: str) -> None:
    graph, x = two_outputs(), torch.ones(SIZE, SIZE)
    with Engine(machine(["cuda:0", "cuda:1"], ahead=2), "cuda", EngineConfig(mode=mode)) as engine:
        for seed in range(4):
            found = engine.execute(graph, assign(graph, 2, seed), {"x": x}, repeats=2).outputs
            assert torch.equal(found["w"], expected_outputs(x)["w"])


def test_large_tensors_go_through_the_host_in_chunks(
    gpu: FakeCuda | RealCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "CHUNK_BYTES", 256)
    graph, inputs, expected = workload("chainmm", 4, dtype="float64")
    with Engine(machine(parts(2), via="host", ahead=1), "cuda") as engine:
        for seed in range(5):
            assert_close(engine.execute(graph, assign(graph, 2, seed), inputs).outputs, expected)


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(synchronous=True),
        EngineConfig(strategy="random"),
        EngineConfig(mode="fixed", depth=1),
        EngineConfig(mode="fixed", strategy="critical-path"),
    ],
)
def test_other_schedules(gpu: FakeCuda | RealCuda, config: EngineConfig) -> None:
    graph, inputs, expected = workload("ffnn", 4)
    with Engine(MACHINES["host"], "cuda", config) as engine:
        assert_close(engine.execute(graph, assign(graph, 4), inputs).outputs, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("peers", [True, False])
@pytest.mark.parametrize("where", [["cuda:0", "cuda:1"], [*parts(2), *parts(2, gpu=1)]])
def test_two_gpus(fake: FakeCuda, peers: bool, where: list[str], mode: str) -> None:
    fake.peers = peers
    graph, inputs, expected = workload("chainmm", 4)
    shared = Link("bus", 1e9)  # over which transfers of all pairs queue
    route = np.where(np.eye(len(where), dtype=bool), -1, 0)
    apart = machine(where, ahead=2)
    for topology in (apart, Topology("bus", apart.devices, (shared,), route, Host(ahead=2))):
        with Engine(topology, "cuda", EngineConfig(mode=mode)) as engine:
            assert engine.backend.memory(len(where) - 1) == 1
            for seed in range(3):
                assignment = assign(graph, len(where), seed)
                assert_close(engine.execute(graph, assignment, inputs).outputs, expected)


def test_two_gpus_are_needed() -> None:
    if torch.cuda.device_count() > 1:
        pytest.skip("there are two")
    with pytest.raises(EngineError):
        make_backend("cuda", machine(["cuda:0", "cuda:1"]))


class Trouble(CudaBackend):
    """Runs other kernels in place of some."""

    launch = staticmethod(lambda kernel: kernel())

    def __init__(self, topology: Topology) -> None:
        self.instead: dict[int, Callable[[], None]] = {}
        super().__init__(topology)

    def prepare(self, graph: Any, tasks: Any, actions: Any, behind: Any = None) -> Any:
        watched = []
        for task, action in enumerate(actions):
            if isinstance(action, Exec):
                run = partial(self._run, task, action.launches)
                run.on_host = True
                action = Exec(action.device, (run,))
            watched.append(action)
        return super().prepare(graph, tasks, watched, behind)

    def _run(self, task: int, launches: list[Callable[[], None]]) -> None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("what runs is decided when it runs, so it is not captured")
        if task in self.instead:
            self.instead[task]()
            return
        for each in launches:
            self.launch(each)


def test_a_kernel_that_fails_when_launched(gpu: FakeCuda | RealCuda) -> None:
    def fail() -> None:
        raise ValueError("too much")

    graph, inputs, expected = workload("chainmm", 4)
    backend = Trouble(MACHINES["host"])
    with Engine(MACHINES["host"], backend) as engine:
        task = vertex(graph, "CDE")
        backend.instead[task] = fail
        with pytest.raises(EngineError, match=r"vertex `CDE.*failed: ValueError: too much"):
            engine.execute(graph, assign(graph, 4), inputs)
        del backend.instead[task]
        assert_close(engine.execute(graph, assign(graph, 4), inputs).outputs, expected)


def test_a_kernel_that_takes_too_long(gpu: FakeCuda | RealCuda) -> None:
    graph, inputs, expected = chain()
    topology = machine(parts(2), via="host")
    backend = Trouble(topology)
    with Engine(topology, backend, EngineConfig(timeout_s=0.3)) as engine:
        engine.execute(graph, assign(graph, 2), inputs)
        task = vertex(graph, "f2")
        backend.instead[task], backend.grace_s = lambda: gpu.block(1.5), 0.0
        with pytest.raises(EngineError, match=r"`f2.*did not end within 0\.3 s"):
            engine.run(graph, assign(graph, 2))
        del backend.instead[task]
        with pytest.raises(EngineError, match="still on the GPU"):
            engine.run(graph, assign(graph, 2))
        backend.grace_s = 5.0
        assert_close(engine.execute(graph, assign(graph, 2), inputs).outputs, expected)


def test_a_kernel_that_fails_later_ends_it_all(fake: FakeCuda) -> None:
    def fail() -> None:
        fake.error = "an illegal memory access was encountered"

    graph, _, _ = chain()
    topology = machine(parts(2), via="host")
    backend = Trouble(topology)
    with Engine(topology, backend) as engine:
        backend.instead[vertex(graph, "f2")] = fail
        with pytest.raises(EngineError, match=r"failed: RuntimeError: CUDA error: an illegal"):
            engine.run(graph, assign(graph, 2))
        with pytest.raises(
            EngineError, match=r"CUDA has failed in this process: .* encountered"
        ) as e:
            engine.run(graph, assign(graph, 2))
        assert e.value.hint == "start a new process"
    with pytest.raises(EngineError, match="cannot be used: CUDA error: an illegal"):
        CudaBackend(topology)


def test_another_thread_can_cancel(gpu: FakeCuda | RealCuda) -> None:
    graph, _, _ = chain()
    topology = machine(parts(2))
    backend = Trouble(topology)
    with Engine(topology, backend) as engine:
        backend.instead[vertex(graph, "f2")] = lambda: gpu.block(1.0)
        timer = threading.Timer(0.2, engine.cancel)
        timer.start()
        with pytest.raises(EngineError, match="cancelled"):
            engine.run(graph, assign(graph, 2))
        timer.join()


def test_repeated_runs_and_engines_take_no_more_memory(gpu: FakeCuda | RealCuda) -> None:
    graph, inputs, _ = workload("chainmm", 4)
    for ahead in (0, 1):
        topology = machine(parts(4), via="host", ahead=ahead)
        used = []
        for _ in range(3):
            with Engine(topology, "cuda") as engine:
                for _ in range(3):
                    engine.execute(graph, assign(graph, 4), inputs)
                before = gpu.used_bytes()
                for _ in range(5):
                    engine.execute(graph, assign(graph, 4), inputs)
                assert gpu.used_bytes() <= before + 8  # another order may take another event
            used.append(gpu.used_bytes())
        if isinstance(gpu, RealCuda):
            assert used[1] == used[2]
        else:
            assert sum(map(len, gpu.idle.values())) == len(gpu.streams) - 1  # the default's


def test_tasks_of_a_slot_and_of_a_lane_run_one_after_another(gpu: FakeCuda | RealCuda) -> None:
    topology = machine(parts(2), via="host", lanes=2, slots=2, ahead=2)
    graph, _, _ = chain()
    tasks = enumerate_tasks(graph, topology, assign(graph, 2).devices)
    backend = Trouble(topology)
    value, output = (torch.zeros(1000, device=cuda.where(0)) for _ in range(2))
    actions = [Exec(0, ())] * 4 + [None] * 6 + [Copy(0, 0, 1, value, output)] * 4
    backend.instead = dict.fromkeys(range(4), lambda: gpu.block(0.05))
    backend.begin(backend.prepare(graph, tasks, actions))
    for task in range(4):
        backend.start(task)
        backend.start(10 + task)
    done = []
    while len(done) < 8:
        done += backend.wait(5.0)
    backend.end()
    assert backend.wait(0.0) == []
    assert sorted(done) == [0, 1, 2, 3, 10, 11, 12, 13]
    begin_s, end_s = backend.times()
    for first in (0, 1, 10, 11):
        assert end_s[first] <= begin_s[first + 2]
    assert begin_s[1] < end_s[0]  # two slots
    assert begin_s[0] >= -1e-3
    assert end_s[3] <= backend.now_s() + 1e-3
    backend.close()
    backend.close()


@pytest.mark.parametrize(
    ("where", "order"),
    [(parts(2), order) for order in ("dynamic", "fixed", "captured")]
    + [(["cuda:0", "cuda:1"], order) for order in ("dynamic", "fixed")],
)
def test_copies_to_the_host_and_back(
    gpu: FakeCuda | RealCuda, where: list[str], order: str
) -> None:
    """There and back, over a link that moves tensors between devices as well."""
    if isinstance(gpu, RealCuda) and torch.cuda.device_count() < len({w[:6] for w in where}):
        pytest.skip("needs another GPU")
    topology = machine(where, via="host")
    graph, _, _ = chain()
    tasks = enumerate_tasks(graph, topology, assign(graph, 2).devices)
    backend = CudaBackend(topology)
    d0, d1 = (cuda.where(backend.memory(d)) for d in range(2))
    value = torch.arange(1000, device=d0)
    there, back, last = (torch.zeros(1000, dtype=value.dtype, device=d) for d in (d1, d0, d1))
    room = backend.host_memory(value.nbytes).view(value.dtype)
    actions = [
        Copy(0, 0, 1, value, there),
        Copy(0, 1, 2, there, room),
        Copy(0, 2, 0, room, back),
        Copy(0, 0, 1, back, last),
    ]
    count, timed = len(actions), order != "captured"
    needs = [[], [0], [1], [2]]
    behind = None if order == "dynamic" else Behind(needs, [0] * count)
    commands = backend.prepare(graph, tasks, actions, behind)
    for run in range(3):
        for each in (there, back, last, room):
            each.zero_()
        value += run
        backend.begin(commands, timed=timed)
        done: list[int] = []
        if order == "captured":
            backend.start_all(range(count))
        for task in range(count if timed else 0):
            backend.start(task)
            while behind is None and task not in done:
                done += backend.wait(5.0)
        while len(done) < count:
            done += backend.wait(5.0)
        backend.end()
        assert torch.equal(last.cpu(), value.cpu())
        assert torch.equal(room, value.cpu())
        if timed:
            begin_s, end_s = backend.times()
            assert (begin_s[1:] >= end_s[:-1] - 1e-4).all()  # clocks of two GPUs
            assert (end_s >= begin_s - 1e-4).all()
    backend.close()


def test_memory_is_put_and_got(gpu: FakeCuda | RealCuda) -> None:
    backend = CudaBackend(machine(["cuda:0"]))
    number = torch.arange(6).reshape(2, 3).T
    there = backend.put(number, 0)
    back = backend.get(there)
    assert torch.equal(back, number)
    assert back.data_ptr() != there.data_ptr()
    assert backend.arena(0, 10) is backend.arena(0, 5)
    backend.close()


# What needs no GPU.


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EngineError, match="no CUDA GPU") as error:
        make_backend("cuda", machine(["cuda:0"]))
    assert error.value.hint is not None
    assert "cpu" in error.value.hint


def test_addresses() -> None:
    assert parse_address("cuda:3") == Address(3)
    assert parse_address("cuda:0/1of4") == Address(0, 1, 4)
    assert addresses(machine(["", ""]), 2) == [Address(0), Address(1)]
    assert addresses(machine([*parts(2), "cuda:1"]), 2) == [(0, 0, 2), (0, 1, 2), (1, 0, 0)]


@pytest.mark.parametrize(
    "text",
    ["cuda", "cuda:", "cuda:x", "cpu:0", "0", "cuda:-1", "cuda:0/1", "cuda:0/of4", "cuda:0/1of",
     "cuda:0 ", " cuda:0", "cuda:0/1of4x", "cuda:²", "cuda:0/4of4", "cuda:0/0of0", "cuda:99999"],
)  # fmt: skip
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(TopologyError, match=text.strip()):
        parse_address(text)


@pytest.mark.parametrize(
    "where", [["cuda:0", "cuda:0"], ["cuda:0", "cuda:0/0of2"], ["cuda:0/0of2", "cuda:0/3of4"]]
)
def test_devices_do_not_overlap(where: list[str]) -> None:
    with pytest.raises(EngineError, match="`d0` and `d1` overlap"):
        addresses(machine(where), 1)


def test_too_few_gpus() -> None:
    with pytest.raises(EngineError, match="device `d1` is GPU 1, and the machine has 1") as error:
        addresses(machine(["", "", ""]), 1)
    assert error.value.hint is not None
    assert "dop probe --backend cuda --partitions 3 -o here.json" in error.value.hint


@pytest.mark.parametrize(("count", "size"), [(1, 128), (2, 64), (3, 40), (4, 32), (8, 16), (16, 8)])
def test_shares_of_an_h200(count: int, size: int) -> None:
    assert driver.share(132, count, minimum=8, step=8) == size


def test_too_many_partitions() -> None:
    with pytest.raises(EngineError, match="132 multiprocessors are too few for 17 partitions of"):
        driver.share(132, 17, minimum=8, step=8)


@needs_gpu
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_partitions_of_a_gpu(count: int) -> None:
    driver.start()
    sizes = driver.partition_sizes(0, count)
    assert len(sizes) == count
    assert min(sizes) == max(sizes)
    assert sum(sizes) <= driver.sm_count(0)
    with pytest.raises(EngineError):
        driver.partition_sizes(0, driver.sm_count(0) + 1)


@given(st.integers(0, 1 << 26))
def test_chunks_cover_a_transfer(size: int) -> None:
    found = chunks(size)
    assert len(found) <= 4
    end = 0
    for at, length in found:
        assert (at, at % 256) == (end, 0)
        assert length > 0
        end += length
    assert end == size
    if size >= lanes.CHUNKS * lanes.CHUNK_BYTES:
        assert len(found) == 4
        assert max(length for _, length in found) - min(length for _, length in found) < 1024
    if size < 8 << 20:
        assert len(found) <= 1
