"""What the incumbent's own runs say of a machine that changes."""

import numpy as np
import pytest

pytest.importorskip("torch")

from doppler.graph import Graph
from doppler.machine.drift import DriftConfig
from doppler.placers.registry import place
from doppler.programs import chainmm
from doppler.serving.traces import TraceWindow
from doppler.serving.watch import DEVICE, Change, Watch
from doppler.sharding import shard
from doppler.sim import Noise, SimConfig, Simulator
from doppler.topology import Topology

MACHINE = Topology.preset("p100x4")


def work() -> Graph:
    return shard(chainmm(size=4000, dtype="float32"), 4)


def simulator(slowdown: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> Simulator:
    noise = Noise(exec_sigma=0.03, transfer_sigma=0.03, slowdown=slowdown)
    return Simulator(MACHINE, SimConfig(noise=noise))


@pytest.mark.parametrize("factor", [1.3, 2.0, 5.0, 0.5])
def test_a_change_is_noticed_named_and_dated(factor: float) -> None:
    graph, watch = work(), Watch(work(), MACHINE, DriftConfig())
    assignment = place(graph, MACHINE, "round-robin")
    for seed in range(40):
        trace = simulator().run(graph, assignment, seed)
        assert watch.add(watch.values(trace)) is None
    changed = simulator((1.0, factor, 1.0, 1.0))
    for seed in range(12):
        change = watch.add(watch.values(changed.run(graph, assignment, 100 + seed)))
        if change is not None:
            break
    assert change is not None
    assert 4 <= change.runs <= seed + 2
    devices = {name: ratio for (kind, name), ratio in change.ratios.items() if kind == DEVICE}
    assert devices == {MACHINE.devices[1].name: pytest.approx(factor, rel=0.1)}
    for seed in range(40):  # what it is now is the new level
        assert watch.add(watch.values(changed.run(graph, assignment, 200 + seed))) is None


def test_what_was_before_a_change_counts_no_more_and_doubts_come_with_time() -> None:
    graph = work()
    window = TraceWindow(graph, MACHINE, repeats=4, stale=50)
    spread = place(graph, MACHINE, "round-robin")
    everywhere, name = spread.devices, MACHINE.devices[1].name
    for number in range(4):
        window.add(everywhere, simulator().run(graph, spread, number), number)

    def ratio(now: int) -> float:
        rows = window.calibrated(now).exec_s.values()
        return float(np.mean([row[1] / row[0] for row in rows]))

    assert ratio(4) == pytest.approx(1.0, abs=0.1)
    slow = simulator((1.0, 5.0, 1.0, 1.0))
    window.changed(Change(4, {(DEVICE, name): 5.0}), since=10, now=13)
    for number in range(10, 14):
        trace = slow.run(graph, spread, number)
        window.add(everywhere, trace, number)
    assert ratio(14) == pytest.approx(5.0, rel=0.1)
    single = place(graph, MACHINE, "single")
    for number in range(15, 80):  # another assignment serves, which does not show the device
        window.add(single.devices, slow.run(graph, single, number), number)
    assert (DEVICE, 1) in window.doubts(80)
    assert ratio(80) == pytest.approx(1.0, abs=0.1)  # it may be as it was
    window.unanswered(everywhere, 80)  # a run there was given up: it is not
    assert (DEVICE, 1) not in window.doubts(81)
    assert ratio(81) == pytest.approx(5.0, rel=0.1)
