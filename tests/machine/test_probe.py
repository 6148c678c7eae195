"""The probe finds the machine that a backend plays out, and comes to an end on a real one."""

import json
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from engine.playing_backend import PlayingBackend, machine, small_graph

from doppler.assignment import Assignment
from doppler.cost import DefaultCostModel
from doppler.engine.backends.registry import make_backend
from doppler.engine.config import EngineConfig
from doppler.engine.engine import Engine
from doppler.errors import ConfigError, DopplerError, OutOfMemoryError, UnknownNameError
from doppler.graph import Graph, OpKind
from doppler.graph.signatures import signatures
from doppler.machine import probe as probing
from doppler.machine import validation
from doppler.machine.bench import Bench, Sample, Work
from doppler.machine.calibration import Refined
from doppler.machine.find import IN_FLIGHT, Wanted, find_machine
from doppler.machine.host import HostWatch, measure_host, tiny_tasks
from doppler.machine.kernels import (
    LOADED_S,
    TINY,
    fit_roofline,
    measure_contention,
    rooflines,
)
from doppler.machine.links import (
    SHARINGS,
    Throughput,
    fit_sharing,
    measure_links,
    patterns,
    relative_speeds,
)
from doppler.machine.probe import (
    SHARES,
    ProbeResult,
    probe,
    probing_assignments,
    write_probe,
)
from doppler.machine.validation import EVALUATIONS, GOOD, diverse_assignments, validate
from doppler.sim import SimConfig, Simulator
from doppler.topology import Host, Link, Topology, read_topology


@pytest.fixture(autouse=True)
def _short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of a tenth of the length, which find good assignments of a small graph."""
    monkeypatch.setattr(validation, "EVALUATIONS", 2000)


PAIRS = [(a, b) for a in range(4) for b in range(4) if a != b]


def played(truth: Topology, **options: object) -> ProbeResult:
    """What the probe makes of a machine."""
    return probe(lambda _: PlayingBackend(truth), devices=truth.num_devices, seconds=5, **options)


@pytest.mark.parametrize(
    ("by", "lanes"), [("all", 1), ("all", 2), ("all", 3), ("source", 1), ("pair", 1), ("pair", 2)]
)
def test_it_finds_links_and_who_shares_them(by: str, lanes: int) -> None:
    truth = machine(4, lanes=lanes, by=by, host_by="device")
    measuring = find_machine(Wanted(backend="played", devices=4))
    samples: list = []
    found = measure_links(Bench(PlayingBackend(truth), measuring), 5.0, samples)
    assert len(found.links) == truth.num_links
    np.testing.assert_array_equal(found.route, truth.route)
    for link in found.links[: int(truth.route.max()) + 1]:
        assert link.lanes == lanes
        assert link.latency_s == pytest.approx(2e-5, rel=1e-3)
        assert link.bandwidth_bytes_per_s == pytest.approx(2e9, rel=1e-3)
    exact = pytest.approx(0, abs=1e-3)
    assert found.errors == {"memory": exact, "host memory": exact}
    assert {sample.kind for sample in samples} == {"copy", "copies"}


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize(("by", "lanes"), [("device", 1), ("device", 2), ("all", 1), ("all", 2)])
def test_it_finds_links_to_the_host(devices: int, by: str, lanes: int) -> None:
    truth = machine(devices, host_by=by, host_lanes=lanes)
    measuring = find_machine(Wanted(backend="played", devices=devices))
    samples: list[Sample] = []
    found = measure_links(Bench(PlayingBackend(truth), measuring), 5.0, samples)
    assert found.host_links == truth.host_links
    for link in {found.links[i] for i in found.host_links}:
        assert link.name.startswith("host memory")
        assert link.lanes == lanes
        assert link.latency_s == pytest.approx(1e-5, rel=1e-3)
        assert link.bandwidth_bytes_per_s == pytest.approx(1e9, rel=1e-3)
    copied = {sample.device for sample in samples if sample.kind == "copy"}
    assert {"played0→host", "host→played0"} <= copied


def test_two_of_four_copies_at_a_time_make_two_lanes() -> None:
    """Copies through the host of an H200: 27 GB/s alone, 48 GB/s over four in all."""
    seen = [Throughput(tuple(PAIRS[:n]), rate) for n, rate in [(1, 27e9), (2, 48e9), (4, 48e9)]]
    found = fit_sharing(seen, {}, {"all": SHARINGS["all"]})
    assert found.lanes == 2
    assert 24e9 < found.bytes_per_s < 26e9
    assert 0 < found.error < 0.1


def test_links_of_different_speeds_stay_different() -> None:
    truth = machine(3, by="pair")
    slow = int(truth.route[0, 2])
    links = [
        replace(link, bandwidth_bytes_per_s=5e8) if i == slow else link
        for i, link in enumerate(truth.links)
    ]
    truth = replace(truth, links=tuple(links))
    measuring = find_machine(Wanted(backend="played", devices=3))
    found = measure_links(Bench(PlayingBackend(truth), measuring), 5.0, [])
    for a, b in PAIRS:
        if max(a, b) < 3:
            want = 5e8 if (a, b) == (0, 2) else 2e9
            link = found.links[found.route[a, b]]
            assert link.bandwidth_bytes_per_s == pytest.approx(want, rel=0.02)


def test_speeds_that_hardly_differ_are_one() -> None:
    fits = {pair: Link("l", 1e9 * (1 + 0.01 * i)) for i, pair in enumerate(PAIRS)}
    assert relative_speeds(fits) == {}
    fits[0, 1] = Link("l", 4e9)
    assert relative_speeds(fits)[0, 1] == pytest.approx(4 / 1.06, rel=0.02)


def test_patterns_tell_the_sharings_apart() -> None:
    for size in (2, 3, 4, 8):
        pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
        found = dict(patterns(pairs))
        assert found["alone"] == [pairs[0]]
        for name, chosen in found.items():
            assert set(chosen) <= set(pairs)
            assert len(chosen) <= IN_FLIGHT
            sources, targets = {a for a, _ in chosen}, {b for _, b in chosen}
            if name.startswith("apart"):
                assert len(sources) == len(targets) == len(chosen)
        if size >= 3:  # with two devices there is one pair of each source
            keys = {
                by: [len({SHARINGS[by](p) for p in chosen}) for chosen in found.values()]
                for by in SHARINGS
            }
            assert len({tuple(key) for key in keys.values()}) == len(SHARINGS)


def test_it_finds_speeds() -> None:
    truth = machine(2)
    result = played(truth)
    for device, true in zip(result.topology.devices, truth.devices, strict=True):
        assert device.launch_s == pytest.approx(true.launch_s, rel=0.01)
        assert device.memory_bytes_per_s == pytest.approx(true.memory_bytes_per_s, rel=0.01)
        for dtype, rate in true.flops_per_s.items():
            assert device.flops_per_s[dtype] == pytest.approx(rate, rel=0.01)
    assert result.errors.roofline["matmul"] < 0.01
    assert result.runs == 0
    assert result.topology.exec_s == {}


def test_devices_are_alike_unless_they_are_not() -> None:
    works = [TINY, *(Work(OpKind.INPUT_ELEMWISE, 1 << n, "float32") for n in (20, 22))]
    works += [Work(OpKind.MATMUL, 512, d) for d in ("float16", "float32", "float64")]
    took = {work: 1e-5 + work.flops * 1e-12 for work in works}
    noisy = {work: s * (1.1 if i % 2 else 0.92) for i, (work, s) in enumerate(took.items())}
    slow = {work: 2 * s for work, s in took.items()}
    assert len(set(map(id, rooflines([took, noisy], 3)))) == 1
    found = rooflines([took, slow, took], 4)
    assert found[0] == fit_roofline(took)
    assert found[1] == fit_roofline(slow)
    assert found[3] == fit_roofline(took)  # not measured: the middle


def test_it_finds_the_host() -> None:
    truth = replace(machine(4), host=Host(dispatch_s=5e-5))
    engine = Engine(replace(truth, host=Host(ahead=1)), PlayingBackend(truth))
    host = measure_host(engine, [])
    assert host.dispatch_s == pytest.approx(5e-5, rel=0.05)
    assert host.completion_s == pytest.approx(0, abs=2e-6)
    assert host.ahead == 1


def test_what_tasks_of_a_graph_cost_the_host_is_watched() -> None:
    graph, truth = small_graph(), replace(machine(3), host=Host(dispatch_s=7e-6, ahead=1))
    watch = HostWatch(PlayingBackend(truth))
    assert watch.dispatch_s == 0
    with Engine(truth, watch) as engine:  # type: ignore[arg-type]
        for devices in (1, 3):
            watch.reset()
            dealt = np.arange(graph.num_vertices) % devices
            trace = engine.run(graph, Assignment(np.where(graph.is_input, -1, dealt)))
            assert watch.dispatch_s == pytest.approx(7e-6)
            assert trace.makespan_s > 7e-6 * len(trace.vertex)
    found = played(truth, graph=graph).topology.host
    assert found.dispatch_s == pytest.approx(7e-6)


def test_tiny_tasks_run_for_real() -> None:
    topology = find_machine(Wanted(backend="cpu", devices=1))
    with Engine(topology, "cpu") as engine:
        for in_a_row in (False, True):
            graph = tiny_tasks(5, in_a_row=in_a_row)
            trace = engine.run(graph, Assignment(np.where(graph.is_input, -1, 0)))
            assert len(trace.vertex) == 5
            assert ((trace.after >= 0).sum() == 4) == in_a_row


def test_a_graphs_kernels_get_the_seconds_they_took() -> None:
    graph, truth = small_graph(), machine(4, lanes=2, host_by="all")
    found = played(truth, graph=graph).topology
    want, got = (DefaultCostModel().costs(graph, t) for t in (truth, found))
    np.testing.assert_allclose(got.exec_s, want.exec_s, rtol=1e-6)
    np.testing.assert_allclose(got.s_per_byte, want.s_per_byte, rtol=1e-3)
    assert found.links[0].lanes == 2
    assignment = Assignment(np.where(graph.is_input, -1, np.arange(graph.num_vertices) % 4))
    makespans = [Simulator(t).run(graph, assignment).makespan_s for t in (truth, found)]
    assert makespans[0] == pytest.approx(makespans[1], rel=1e-3)


def test_held_out_runs_say_how_far_it_is_off() -> None:
    graph, truth = small_graph(), machine(2)
    assert played(truth, graph=graph).errors.held_out["all"] < 1e-3
    rng = np.random.default_rng(0)

    class Varying(PlayingBackend):
        def _seconds(self, graph, tasks, task) -> float:  # type: ignore[no-untyped-def]
            return float(rng.uniform(0.8, 1.2)) * super()._seconds(graph, tasks, task)

    result = probe(lambda _: Varying(truth), devices=2, graph=graph, seconds=5)
    assert result.errors.held_out["all"] == pytest.approx(0.1, rel=0.2)
    assert result.errors.held_out["matmul"] == pytest.approx(0.1, rel=0.2)


def test_good_assignments_are_run_in_rounds_and_those_that_fail_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probing, "monotonic", lambda: 0.0)  # all rounds, however slow this machine
    graph, truth = small_graph(), machine(2)
    seen: list[Topology] = []

    def make(graph: Graph, topology: Topology, seed: int, _: int) -> list[Assignment]:
        seen.append(topology)
        second = np.where(graph.is_input, -1, 1)
        mixed = np.where(graph.is_input, -1, np.arange(graph.num_vertices) // 2 % 2)
        return [Assignment(second, placer="mine"), Assignment(mixed, placer="mixed")]

    class Small(PlayingBackend):
        def start(self, task: int) -> None:
            devices = self._commands.tasks.devices.tolist()
            if set(devices) == {-1, 1} and len(devices) > 60:
                raise OutOfMemoryError("no room")
            super().start(task)

    monkeypatch.setattr(probing, "good_assignments", make)
    result = probe(lambda _: Small(truth), devices=2, graph=graph, seconds=5)
    assert len(seen) == len(SHARES) - 1
    assert all(set(topology.exec_s) >= set(signatures(graph)) - {""} for topology in seen)
    (failure,) = result.failures
    assert failure.startswith("mine: vertex")
    assert "no room" in failure
    placers = [run.assignment.placer for run in result.measured]
    assert placers.count("mixed") == 1
    assert placers[-1] == "mixed"  # every last of a few is held out
    assert result.runs > len(placers)


def test_refining_comes_after_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "monotonic", lambda: 0.0)  # all rounds, however slow this machine
    graph, truth = small_graph(), machine(2)
    calls: list[tuple[Topology, set[Assignment], set[Assignment]]] = []
    given: list[Topology] = []

    def refine(graph, topology, fitted, held_out, *, mode) -> Refined:  # type: ignore[no-untyped-def]
        calls.append((topology, *({run.assignment for run in some} for some in (fitted, held_out))))
        better = replace(topology, name=f"refined {len(calls)}")
        return Refined(better, 0.2, 0.1)

    def make(graph: Graph, topology: Topology, seed: int, _: int) -> list[Assignment]:
        given.append(topology)
        rng = np.random.default_rng(len(given))
        found = rng.integers(2, size=(4, graph.num_vertices))
        return [Assignment(np.where(graph.is_input, -1, devices)) for devices in found]

    monkeypatch.setattr(probing, "good_assignments", make)
    monkeypatch.setattr(probing, "refine", refine)
    result = probe(lambda _: PlayingBackend(truth), devices=2, graph=graph, seconds=5)
    assert [topology.name for topology in given] == ["refined 1", "refined 2"]
    assert result.topology.name == "refined 3"
    assert result.errors.makespans == {"before": 0.2, "after": 0.1}
    for (_, fitted, held_out), (_, more, more_held_out) in pairwise(calls):
        assert fitted < more
        assert len(more_held_out) == len(held_out) + 1  # of the four new ones
        assert not more & more_held_out


class Contended(PlayingBackend):
    """All kernels but products are slower the more devices are busy: they share memory."""

    def _seconds(self, graph, tasks, task) -> float:  # type: ignore[no-untyped-def]
        seconds = super()._seconds(graph, tasks, task)
        if task >= graph.num_vertices or graph.kinds[task] == OpKind.MATMUL:
            return seconds
        busy = {
            int(tasks.devices[other])
            for end, other in self._running
            if other < graph.num_vertices and self._begin_s[other] <= self._now_s < end
        }
        return seconds * (1 + 0.5 * len(busy - {int(tasks.devices[task])}))


class Costly(PlayingBackend):
    """Starting a copy costs the host three times what a kernel does, and seeing an end half."""

    def start(self, task: int) -> None:
        if task >= self._commands.graph.num_vertices:
            self._now_s += 2 * self._truth.host.dispatch_s
        super().start(task)

    def wait(self, timeout_s: float) -> list[int]:
        done = super().wait(timeout_s)
        self._now_s += 0.5 * self._truth.host.dispatch_s * len(done)
        return done


def test_kernels_that_slow_each_other_down_are_found() -> None:
    found = probe(lambda _: Contended(machine(4)), devices=4, seconds=5).topology.contention
    assert found["matmul"] == pytest.approx(1)
    assert found["elementwise"] == pytest.approx(2.5, rel=0.02)  # three others are busy
    assert found["reduction"] == pytest.approx(2.5, rel=0.02)
    assert played(machine(2)).topology.contention == pytest.approx(
        {"matmul": 1, "elementwise": 1, "reduction": 1}
    )
    assert played(machine(1)).topology.contention == {}


def test_devices_are_loaded_with_small_kernels_if_there_is_little_time() -> None:
    truth, largest = machine(2), []
    for seconds in (0.01, 60.0):
        samples: list[Sample] = []
        bench = Bench(PlayingBackend(truth), truth)
        found = measure_contention(bench, truth.devices, seconds, samples)
        assert found == pytest.approx({"matmul": 1, "elementwise": 1, "reduction": 1})
        largest.append(max(sample.seconds for sample in samples))
    assert largest[0] <= 0.01 / 100
    assert 1e-3 < largest[1] <= LOADED_S


def test_devices_run_kernels_in_turn_each_beginning_with_another() -> None:
    works = [TINY, Work(OpKind.MATMUL, 128, "float32")]
    truth = machine(2)
    found = Bench(PlayingBackend(truth), truth).kernels(works, (0, 1), 6)
    alone = [Bench(PlayingBackend(truth), truth).kernel(work, 0, 6) for work in works]
    for by_kernel in found:
        medians = [np.median(each) for each in by_kernel]
        assert medians == pytest.approx([np.median(each) for each in alone], rel=0.01)


def test_a_probe_in_fixed_mode_predicts_runs_in_a_fixed_order() -> None:
    graph, truth = small_graph(), replace(machine(2), host=Host(dispatch_s=2e-6, ahead=1))
    options: dict = {"devices": 2, "graph": graph, "seconds": 1}
    result = probe(lambda _: PlayingBackend(truth), mode="fixed", **options)
    assert all(run.assignment.schedule is not None for run in result.measured)
    assert "mode fixed" in result.topology.description
    chosen = diverse_assignments(graph, result.topology, 8)
    engine = Engine(result.topology, PlayingBackend(truth), EngineConfig(mode="fixed"))
    with engine:
        config = SimConfig(mode="fixed")
        checked = validate(graph, result.topology, engine, chosen, repeats=1, config=config)
    assert checked.mape < 0.01
    with pytest.raises(UnknownNameError, match="no mode named `slow`"):
        probe(lambda _: PlayingBackend(truth), mode="slow", **options)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 3)])
def test_only_kernels_that_began_while_all_devices_were_busy_count(sizes: tuple[int, int]) -> None:
    truth = machine(2)
    devices = [replace(d, launch_s=s * 1e-3) for d, s in zip(truth.devices, sizes, strict=True)]
    truth = replace(truth, devices=tuple(devices))
    by_device = Bench(PlayingBackend(truth), truth).kernels([TINY], (0, 1), 12)
    found = [each for (each,) in by_device]
    assert all(3 <= len(each) <= 12 for each in found)
    assert sizes != (1, 1) or len(found[0]) == len(found[1]) == 12
    assert [np.median(each) for each in found] == pytest.approx([s * 1e-3 for s in sizes], rel=0.01)


def test_a_reduction_sums_rows() -> None:
    work = Work(OpKind.SUM_REDUCTION, 4096, "float32")
    assert (work.shape, work.output_shape) == ((4, 1024), (4,))
    assert work.touched_bytes == 4 * (4096 + 4)
    topology = find_machine(Wanted(backend="cpu", devices=1))
    with closing(make_backend("cpu", topology)) as backend:
        assert min(Bench(backend, topology).kernel(work, 0, 3)) > 0


@pytest.mark.parametrize("kind", [Contended, Costly])
def test_good_runs_and_refining_make_predictions_of_good_assignments_better(
    kind: type[PlayingBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "monotonic", lambda: 0.0)  # all rounds, however slow this machine
    monkeypatch.setattr(validation, "EVALUATIONS", EVALUATIONS)
    graph = small_graph()
    devices = tuple(replace(device, launch_s=3e-5) for device in machine(4).devices)
    truth = replace(machine(4, rate=1e10), devices=devices, host=Host(dispatch_s=1e-5, ahead=1))
    options: dict = {"devices": 4, "graph": graph, "seconds": 2}
    better = probe(lambda _: kind(truth), seed=8, **options)
    monkeypatch.setattr(probing, "good_assignments", lambda *_: [])
    monkeypatch.setattr(
        probing, "refine", lambda _, topology, *__, **___: Refined(topology, 0.0, 0.0)
    )
    plain = probe(lambda _: kind(truth), **options)
    chosen = diverse_assignments(graph, better.topology, 24, qualities=GOOD)
    with Engine(truth, kind(truth)) as engine:
        before, after = (
            validate(graph, found.topology, engine, chosen, repeats=1).mape
            for found in (plain, better)
        )
    assert after < 0.7 * before
    assert after < 0.05
    assert better.errors.makespans["after"] <= better.errors.makespans["before"]
    assert better.errors.makespans["after"] == pytest.approx(after, abs=0.04)


def test_an_error_if_nothing_runs() -> None:
    class Broken(PlayingBackend):
        def start(self, task: int) -> None:
            if len(self._commands.tasks.devices) == small_graph().num_vertices:
                raise OutOfMemoryError("no room")
            super().start(task)

    with pytest.raises(DopplerError, match="no room"):
        probe(lambda _: Broken(machine(2)), devices=2, graph=small_graph(), seconds=5)


def test_one_device_has_no_link_but_that_to_the_host() -> None:
    result = played(machine(1), graph=small_graph())
    assert [link.name for link in result.topology.links] == ["host memory"]
    assert "transfer" not in result.errors.held_out


def test_probing_assignments_use_all_devices_and_one() -> None:
    graph, topology = small_graph(), machine(4)
    found = probing_assignments(graph, topology, seed=1)
    for assignment in found:
        assignment.check(graph, topology)
    used = [set(a.devices[graph.assigned].tolist()) for a in found]
    assert {0, 1, 2, 3} in used
    assert {0} in used
    assert found == probing_assignments(graph, topology, seed=1)
    assert found != probing_assignments(graph, topology, seed=2)


def test_files(tmp_path: Path) -> None:
    graph = small_graph()
    result = played(machine(2), graph=graph)
    beside = write_probe(result, tmp_path / "here.json")
    assert beside == tmp_path / "here.samples.json"
    assert read_topology(tmp_path / "here.json") == result.topology
    document = json.loads(beside.read_text())
    columns, names = document["samples"], document["names"]
    kinds = {names[i] for i in columns["kind"]}
    assert kinds == {"copy", "copies", "kernel", "kernels", "host", "exec", "transfer"}
    assert {len(column) for column in columns.values()} == {len(result.samples)}
    assert set(signatures(graph)) - {""} <= {names[i] for i in columns["what"]}
    assert columns["seconds"] == [sample.seconds for sample in result.samples]
    assert document["description"] == result.topology.description


def test_a_real_machine() -> None:
    result = probe("cpu", seconds=1)
    topology = result.topology
    assert topology.devices[0].address.startswith("cpu:")
    assert all(rate > 0 for d in topology.devices for rate in d.flops_per_s.values())
    assert topology.host.dispatch_s > 0
    assert "torch" in topology.description


def test_a_real_machine_and_a_graph() -> None:
    graph = small_graph()
    result = probe("cpu", devices=1, graph=graph, seconds=1)
    assert set(result.topology.exec_s) == {s for s in signatures(graph) if s}
    assert result.topology.num_devices == 1
    assert result.errors.held_out["all"] >= 0


def test_the_null_backend_takes_no_time() -> None:
    assert probe("null", devices=3, seconds=1).topology.num_devices == 3


@pytest.mark.parametrize(
    "options",
    [
        {"links": "both"},
        {"devices": 0},
        {"devices": 100_000},
        {"partitions": 2},
        {"seconds": 0},
        {"backend": "gpu"},
        {"backend": "cuda", "partitions": 0},
    ],
)
def test_mistakes_are_refused(options: dict) -> None:
    with pytest.raises((ConfigError, UnknownNameError)):
        probe(**options)
