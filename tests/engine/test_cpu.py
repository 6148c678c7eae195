"""The CPU backend: cores, threads, buffers."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.running import Spy, assert_close, assign, chain, machine, workload  # noqa: E402

from doppler.engine.backends.cpu import CpuBackend, share_cores  # noqa: E402
from doppler.engine.engine import Engine  # noqa: E402
from doppler.errors import TopologyError  # noqa: E402
from doppler.topology import Device, Topology  # noqa: E402

SOAK = 3000  # runs; the benchmark has more


def threads() -> list[str]:
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("doppler-"))


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    before = threading.enumerate()
    yield
    assert threading.enumerate() == before


# Cores.


def devices(*addresses: str, slots: int = 1) -> list[Device]:
    return [Device(f"d{i}", slots=slots, address=a) for i, a in enumerate(addresses)]


def test_cores_that_no_address_names_go_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 5, 7, 8}, raising=False)
    assert share_cores(devices("", "")) == [([2, 5, 8], 1), ([3, 7], 1)]
    assert share_cores(devices("", "cpu:3,7", "")) == [([2, 8], 1), ([3, 7], 2), ([5], 1)]
    assert share_cores(devices(*[""] * 7)) == [([c], 1) for c in (2, 3, 5, 7, 8, 2, 3)]
    assert share_cores(devices("cpu:2-8", "")) == [([2, 3, 4, 5, 6, 7, 8], 7), ([2, 3, 5, 7, 8], 1)]


def test_an_address_names_cores_and_threads() -> None:
    assert share_cores(devices("cpu:0,2-3", "cpu:1")) == [([0, 2, 3], 3), ([1], 1)]
    assert share_cores(devices("cpu:0-3", slots=2)) == [([0, 1, 2, 3], 2)]
    assert share_cores(devices("cpu:0", slots=2)) == [([0], 1)]


@pytest.mark.parametrize(
    "address", ["cuda:0", "cpu", "cpu:", "cpu:x", "cpu:1,", "cpu:-1", "cpu:3-2", "cpu:0-99999"]
)
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(TopologyError, match=rf"device `d0`: address `{address}` names no cores"):
        share_cores(devices(address))


def seen_by_workers(topology: Topology) -> dict[str, tuple[set[int], int, bool]]:
    """Cores, threads of torch, and whether it records gradients, in each device's worker."""
    graph, inputs, _ = chain()
    spy, seen = Spy(topology), {}

    def look(kernel: Any, out: Any) -> None:
        kernel()
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        name = threading.current_thread().name
        seen[name] = (cores, torch.get_num_threads(), torch.is_inference_mode_enabled())

    spy.instead = dict.fromkeys(range(graph.num_vertices), look)
    with Engine(topology, spy) as engine:
        engine.execute(graph, assign(graph, [0, 0, 0, 0, 1, 1, 1]), inputs)
    return seen


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Torch computes on two threads outside of workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_workers_are_on_their_cores_and_use_one_thread() -> None:
    seen = seen_by_workers(machine())
    expected = {
        f"doppler-d{i}-0": (set(cores), 1, True)
        for i, (cores, _) in enumerate(share_cores(machine().devices))
    }
    if not hasattr(os, "sched_setaffinity"):
        expected = {name: (set(), *rest) for name, (_, *rest) in expected.items()}
    assert seen == expected
    fresh: list[int] = []
    thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert [torch.get_num_threads(), *fresh] == [2, 2]


def with_addresses(topology: Topology, *addresses: str) -> Topology:
    found = [replace(d, address=a) for d, a in zip(topology.devices, addresses, strict=True)]
    return replace(topology, devices=tuple(found))


def test_workers_use_as_many_threads_as_their_address_has_cores() -> None:
    first, *others = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0, 1]
    if not others:
        pytest.skip("needs two cores")
    addresses = f"cpu:{first},{others[0]}", f"cpu:{first}"
    seen = seen_by_workers(with_addresses(machine(), *addresses))
    assert seen["doppler-d0-0"][1:] == (2, True)
    assert seen["doppler-d1-0"][1:] == (1, True)


def test_cores_that_are_not_there_are_no_reason_to_stop() -> None:
    everywhere = seen_by_workers(with_addresses(machine(), "cpu:9998", "cpu:9999"))
    assert all(threads == 1 for _, threads, _ in everywhere.values())


# Threads.


def test_threads_start_with_the_first_run_and_end_with_the_engine() -> None:
    graph, inputs, expected = chain()
    topology = machine(3, slots=2, lanes=2)
    engine = Engine(topology, "cpu")
    assert threads() == []
    engine.execute(graph, assign(graph, [0] * 7), inputs)
    assert threads() == ["doppler-d0-0", "doppler-d0-1"]  # none that has nothing to do
    engine.execute(graph, assign(graph, [0, 0, 1, 2, 0, 1, 2]), inputs, repeats=20)
    kept = threading.enumerate()
    engine.execute(graph, assign(graph, [0, 2, 2, 1, 0, 0, 1]), inputs, repeats=20)
    assert threading.enumerate() == kept
    assert threads() == [
        *(f"doppler-{name}-{i}" for name in ("bus", "d0", "d1", "d2") for i in range(2))
    ]
    engine.close()
    engine.close()
    assert threads() == []
    assert_close(engine.execute(graph, assign(graph, 3), inputs).outputs, expected)  # starts anew
    engine.close()


def test_slots_run_at_the_same_time_and_others_wait_their_turn() -> None:
    """Two slots, three tasks: two kernels meet, the third comes when one has left."""
    graph, inputs, _ = workload("chainmm", 4)
    starts = [v for v in graph.assigned.tolist() if graph.vertex_names[v].startswith("DE[")]
    topology = machine(1, slots=2, ahead=3)
    spy, inside, order, most = Spy(topology), [], [], []
    meeting = threading.Barrier(2, timeout=30)

    def meet(kernel: Any, out: Any) -> None:
        inside.append(out)
        most.append(len(inside))
        if len(order) < 2:
            order.append(out)
            meeting.wait()
        kernel()
        inside.pop()

    spy.instead = dict.fromkeys(starts[:3], meet)
    with Engine(topology, spy) as engine:
        trace = engine.execute(graph, assign(graph, 1), inputs).trace
    assert max(most) == 2
    by_begin = [v for v in trace.vertex.tolist() if v in starts]
    assert by_begin == sorted(by_begin)


def test_a_link_without_a_limit_has_a_thread_for_each_device() -> None:
    graph, inputs, expected = workload("chainmm", 4)
    with Engine(machine(3, lanes=0), "cpu") as engine:
        assert_close(engine.execute(graph, assign(graph, 3), inputs).outputs, expected)
        assert [name for name in threads() if "bus" in name] == [
            f"doppler-bus-{i}" for i in range(3)
        ]


def test_a_backend_that_nobody_holds_takes_its_threads_along() -> None:
    graph, _, _ = chain()
    before = threading.active_count()
    engine = Engine(machine(), "cpu")
    engine.run(graph, assign(graph, 2))
    gone = weakref.ref(engine.backend)
    workers = [t for t in threading.enumerate() if t.name.startswith("doppler-")]
    del engine
    gc.collect()
    assert gone() is None
    for worker in workers:
        worker.join(30)
    assert threading.active_count() == before


FORGETFUL = """
import sys
sys.path.insert(0, {tests!r})
from engine.running import *
from doppler.engine.backends.base import Exec
from doppler.engine.engine import Engine
graph, inputs, _ = workload("chainmm", 4)
engine = Engine(machine(), "cpu")
engine.execute(graph, assign(graph, 2), inputs)
if {busy}:
    a = torch.rand(1500, 1500)
    work = [Exec(d, (lambda: torch.mm(a, a),)) for d in range(2)]
    engine.backend.begin(engine.backend.prepare(None, None, work))
    for d in range(2):
        engine.backend.start(d)
print("done")
"""


@pytest.mark.parametrize("busy", [False, True])
def test_a_process_ends_though_the_backend_was_not_closed(busy: bool) -> None:
    code = FORGETFUL.format(tests=str(Path(__file__).parent.parent), busy=busy)
    run = [sys.executable, "-c", code]
    result = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


# Memory.


def test_an_arena_is_kept_until_it_is_too_small() -> None:
    backend = CpuBackend(machine())
    first = backend.arena(0, 100)
    assert (first.numel(), first.dtype) == (100, torch.uint8)
    assert backend.arena(0, 60) is first
    assert backend.arena(1, 60) is not first
    assert backend.arena(0, 101).numel() == 101


def test_other_assignments_and_graphs_use_the_same_memory() -> None:
    graph, inputs, expected = workload("llama-block", 4)
    spy, most = Spy(machine()), 0
    with Engine(machine(), spy) as engine:
        engine.load(graph, inputs)
        for seed in range(40):  # more than are kept prepared
            found = engine.execute(graph, assign(graph, 2, seed), inputs).outputs
            assert_close(found, expected)
            sizes = [spy.arena(d, 0).numel() for d in range(2)]
            most = max(most, sum(out.nbytes + 256 for out in spy.outputs.values()))
            assert sum(sizes) <= 2 * most + (1 << 20)
        other, other_inputs, other_expected = chain()
        assert_close(engine.execute(other, assign(other, 2), other_inputs).outputs, other_expected)
        assert [spy.arena(d, 0).numel() for d in range(2)] == sizes


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_thousands_of_runs_leave_nothing_behind() -> None:
    graph, inputs, _ = chain(length=4, size=1 << 14)
    spy = Spy(machine())
    assignments = [assign(graph, 2, seed) for seed in range(8)]
    with Engine(machine(), spy) as engine:
        engine.load(graph, inputs)
        for n in range(SOAK // 5):
            engine.run(graph, assignments[n % 8])
        gc.collect()
        before = resident_bytes(), threading.enumerate(), spy.prepared, len(gc.get_objects())
        for n in range(SOAK):
            engine.run(graph, assignments[n % 8])
        gc.collect()
        after = resident_bytes(), threading.enumerate(), spy.prepared, len(gc.get_objects())
    assert after[0] - before[0] < 8 << 20  # a buffer lost in each run would be 192 MB
    assert after[1:3] == before[1:3]
    assert after[3] - before[3] < 500
