"""OnlinePlacer in production: bad requests, candidates that fail, machines that change."""

import logging
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from doppler.base.arrays import IntArray  # noqa: E402
from doppler.engine.engine import Engine  # noqa: E402
from doppler.engine.execution import Execution  # noqa: E402
from doppler.errors import DeadlineError, EngineError, GraphError  # noqa: E402
from doppler.graph import Graph  # noqa: E402
from doppler.placers.registry import place  # noqa: E402
from doppler.programs import chainmm, ffnn  # noqa: E402
from doppler.serving.config import OnlineConfig  # noqa: E402
from doppler.serving.exploration import CHALLENGER  # noqa: E402
from doppler.serving.online import OnlinePlacer  # noqa: E402
from doppler.sharding import shard  # noqa: E402
from doppler.sim import Noise, Simulator  # noqa: E402
from doppler.testing.servers import HANG, Fault, VirtualServer  # noqa: E402
from doppler.topology import Topology  # noqa: E402

MACHINE = Topology.preset("p100x4")
QUICK = OnlineConfig(explore=0.3, warm_up=3, pause=4, moves=200, slowdown=0.1)
NOISE = Noise(exec_sigma=0.02, transfer_sigma=0.02)


def work() -> Graph:
    return shard(chainmm(size=4000, dtype="float32"), 4)


def online(server: Any, config: OnlineConfig = QUICK, start: str = "round-robin") -> OnlinePlacer:
    graph = work()
    first = place(graph, MACHINE, start)
    return OnlinePlacer(graph, server, first, config, clock=server.clock)


def serve(placer: OnlinePlacer, count: int, inputs: Any = None) -> None:
    for _ in range(count):
        placer.serve(inputs)


def test_a_bad_request_costs_nothing_but_itself() -> None:
    server = VirtualServer(MACHINE, NOISE)
    placer = online(server)
    while not placer.status().promoted:
        placer.serve()
    before, runs = placer.status(), server.runs
    for _ in range(5):
        with pytest.raises(GraphError, match="expected float32"):
            placer.serve({"bad": 1})
    after = placer.status()
    assert server.runs == runs
    assert after.faults["request"] == 5
    assert replace(after, faults=before.faults) == before


def test_one_transient_error_costs_one_more_run() -> None:
    server = VirtualServer(MACHINE, NOISE)
    placer = online(server)
    serve(placer, 120)
    placer.off()
    before, errors = placer.status(), [EngineError("the bus hiccuped")]
    server.fault = lambda devices: errors.pop() if errors else None
    placer.serve()
    after = placer.status()
    assert (after.incumbent, after.faults["machine"]) == (before.incumbent, 1)
    assert (after.lost, after.requests) == (0, before.requests + 1)


@pytest.mark.parametrize(
    "fault", [EngineError("refused"), ZeroDivisionError("odd"), MemoryError(), HANG, KeyError("x")]
)
def test_a_candidate_may_fail_in_any_way(fault: Fault) -> None:
    start = place(work(), MACHINE, "round-robin").devices
    tried: list[bytes] = []

    def breaks(devices: IntArray) -> Fault:
        if np.array_equal(devices, start):
            return None
        tried.append(devices.tobytes())
        return fault

    server = VirtualServer(MACHINE, NOISE, fault=breaks)
    placer = online(server)
    serve(placer, 100)
    status = placer.status()
    assert (status.requests, status.lost, status.promoted) == (100, 0, 0)
    assert len(tried) == len(set(tried)) == status.explored == status.dropped > 2
    assert (status.late if fault == HANG else status.failures) == len(tried)
    assert server.now_s < 1.2 * 100 * status.incumbent_s  # no hang took a minute


def test_a_candidate_with_other_results_than_the_incumbents_is_out() -> None:
    server = VirtualServer(MACHINE, NOISE)
    start = place(work(), MACHINE, "round-robin").devices
    execute = server.execute

    def odd(graph: Graph, assignment: Any, inputs: Any = None, **options: Any) -> Execution:
        execution = execute(graph, assignment, inputs, **options)
        if np.array_equal(assignment.devices, start):
            return execution
        return replace(execution, outputs={"sum": np.zeros(2)})

    server.execute = odd  # type: ignore[method-assign]
    placer = online(server)
    for _ in range(60):
        assert placer.serve().outputs["sum"].shape == ()
    status = placer.status()
    assert status.failures == status.explored > 2
    assert status.promoted == 0


def slower(topology: Topology, device: int, factor: float) -> Topology:
    devices = list(topology.devices)
    one = devices[device]
    devices[device] = replace(
        one,
        flops_per_s={kind: rate / factor for kind, rate in one.flops_per_s.items()},
        memory_bytes_per_s=one.memory_bytes_per_s / factor,
    )
    return replace(topology, devices=tuple(devices))


def test_a_machine_that_changes_is_followed_there_and_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    graph, server = work(), VirtualServer(MACHINE, NOISE)
    placer = online(server, OnlineConfig(), start="critical-path")
    serve(placer, 150)
    used = np.bincount(placer.incumbent.devices[~graph.is_input], minlength=4)
    slow = slower(MACHINE, int(np.argmax(used)), 5.0)

    def goal_s(truth: Topology) -> float:
        return 1.1 * Simulator(truth).run(graph, place(graph, truth, "etf")).makespan_s

    def reached(truth: Topology, within: int) -> bool:
        server.truth, simulator = truth, Simulator(truth)
        for _ in range(within):
            placer.serve()
            if simulator.run(graph, placer.incumbent).makespan_s <= goal_s(truth):
                return True
        return False

    before = placer.status()
    assert Simulator(slow).run(graph, placer.incumbent).makespan_s > goal_s(slow)
    with caplog.at_level(logging.INFO, "doppler.serving"):
        assert reached(slow, 300)
    status = placer.status()
    assert status.changes > before.changes
    changed = [r for r in caplog.records if getattr(r, "event", "") == "changed"]
    assert changed
    name = f"device {MACHINE.devices[int(np.argmax(used))].name}"
    assert status.last_change[name] == pytest.approx(5.0, rel=0.1)
    assert reached(MACHINE, 400)


def test_every_heuristic_is_heard_early_even_if_predictions_are_against_it() -> None:
    """All but `single` are five times as slow as predicted, as on an idle pair of cores."""
    graph = work()
    server = VirtualServer(MACHINE, NOISE)
    single = place(graph, MACHINE, "single")
    one = Simulator(MACHINE).run(graph, single).makespan_s
    slow = replace(
        MACHINE,
        links=tuple(
            replace(x, bandwidth_bytes_per_s=x.bandwidth_bytes_per_s / 50, latency_s=one / 20)
            for x in MACHINE.links
        ),
    )
    server.truth = slow
    placer = online(server, OnlineConfig(), start="round-robin")
    placer._predictor.traces.add = lambda *_: None  # type: ignore[method-assign]
    first = None
    for number in range(300):
        placer.serve()
        if first is None and placer.status().explored:
            first = number
    assert first is not None
    assert first <= QUICK.warm_up + 1 / OnlineConfig().explore + 10
    found = Simulator(slow).run(graph, placer.incumbent).makespan_s
    assert found <= 1.05 * Simulator(slow).run(graph, single).makespan_s


def test_metrics_are_prometheus_text() -> None:
    placer = online(VirtualServer(MACHINE, NOISE))
    serve(placer, 20)
    text = placer.metrics()
    assert text.endswith("\n")
    sample = re.compile(
        r'[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? (NaN|-?\d+(\.\d+)?(e-?\d+)?)'
    )
    for line in text.splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or sample.fullmatch(line), line
    assert "doppler_online_requests_total 20" in text
    assert 'doppler_online_faults_total{cause="machine"} 0' in text
    assert f'doppler_online_incumbent_info{{digest="{placer.status().incumbent}"}} 1' in text


def test_an_engine_checks_requests_first_and_stops_at_a_deadline() -> None:
    topology = Topology.preset("cpu2")
    graph = shard(ffnn(batch=64, features=32, hidden=64, classes=16, dtype="float32"), 4)
    start = place(graph, topology, "round-robin")
    good = {
        "X": np.zeros((64, 32), np.float32),
        "W1": np.zeros((32, 64), np.float32),
        "W2": np.zeros((64, 16), np.float32),
    }
    with Engine(topology, "cpu") as engine:
        with OnlinePlacer(graph, engine, start, QUICK) as placer:
            for bad in (
                {},
                good | {"X": np.zeros((64, 33), np.float32)},
                good | {"W2": np.zeros(3)},
            ):
                with pytest.raises(GraphError):
                    placer.serve(bad)
            assert placer.serve(good).outputs
            assert placer.status().faults["request"] == 3
        with pytest.raises(DeadlineError, match="did not end within"):
            engine.execute(graph, start, good, deadline_s=1e-9)
        assert engine.execute(graph, start, good, deadline_s=60.0).outputs


def test_attempts_of_challengers_have_a_deadline() -> None:
    server, deadlines = VirtualServer(MACHINE, NOISE), []
    execute = server.execute

    def noted(*arguments: Any, deadline_s: float | None = None, **options: Any) -> Execution:
        deadlines.append(deadline_s)
        return execute(*arguments, deadline_s=deadline_s, **options)

    server.execute = noted  # type: ignore[method-assign]
    placer = online(server)
    serve(placer, 40)
    given = [deadline for deadline in deadlines if deadline is not None]
    assert len(given) == placer.status().explored > 0
    longest = QUICK.drop * 2 * placer.status().incumbent_s + QUICK.grace_s
    assert max(given) < longest + 1.0
    assert placer._exploration.next().role in (CHALLENGER, "incumbent")
