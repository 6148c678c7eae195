"""A what-if: what follows from a change is what a simulation from scratch says."""

import numpy as np
import pytest
from report.making import example, planned

import doppler as dp
from doppler.errors import AssignmentError, ConfigError, OutOfMemoryError
from doppler.report.task_columns import listed, packed_columns, task_columns
from doppler.view.config import ViewConfig
from doppler.view.what_if import WhatIf


@pytest.fixture
def what_if() -> WhatIf:
    graph, topology, assignments, _ = example()
    return WhatIf(dp.Problem(graph, topology), assignments["critical-path"])


def test_a_move_is_simulated(what_if: WhatIf) -> None:
    graph, topology, assignments, traces = example()
    assert what_if.outcome.trace.makespan_s == traces["critical-path"].makespan_s
    chosen = graph.assigned[10:30].tolist()
    what_if.move(chosen, 3)
    devices = assignments["critical-path"].devices.copy()
    devices[chosen] = 3
    again = dp.simulate(graph, topology, dp.Assignment(devices))
    assert what_if.outcome.trace.makespan_s == again.makespan_s
    np.testing.assert_array_equal(what_if.outcome.assignment.devices, devices)
    assert what_if.moved == int((devices != assignments["critical-path"].devices).sum())
    assert what_if.bound_s == dp.lower_bounds(graph, topology).best_s


def test_speeds_and_bandwidths(what_if: WhatIf) -> None:
    graph, topology, assignments, traces = example()
    start_s = traces["critical-path"].makespan_s
    for device in range(4):
        what_if.set_speed(device, 2.0)
    assert what_if.outcome.trace.makespan_s < start_s
    for link, one in enumerate(topology.links):
        what_if.set_bandwidth(link, 2 * one.bandwidth_bytes_per_s)
    fast = what_if.outcome.trace
    problem = what_if._changed_problem(what_if.setting)
    again = dp.Simulator(problem).run(graph, assignments["critical-path"])
    assert fast.makespan_s == again.makespan_s
    np.testing.assert_allclose(
        problem.costs.exec_s, dp.Problem(graph, topology).costs.exec_s / 2, rtol=1e-12
    )
    quick_s = what_if.bound_s
    prove = what_if.prover()
    assert prove is not None
    prove()
    assert quick_s <= what_if.bound_s <= fast.makespan_s
    assert what_if.prover() is None
    assert what_if.is_changed
    what_if.reset()
    assert what_if.outcome.trace.makespan_s == start_s
    assert not what_if.is_changed


def test_undo_and_redo(what_if: WhatIf) -> None:
    graph = what_if.graph
    makespans = [what_if.outcome.trace.makespan_s]
    for v, device in zip(graph.assigned[:6].tolist(), (0, 1, 2, 3, 0, 1), strict=True):
        what_if.move([v], device)
        makespans.append(what_if.outcome.trace.makespan_s)
    for expected in makespans[-2::-1]:
        what_if.undo()
        assert what_if.outcome.trace.makespan_s == expected
    what_if.undo()  # nothing is left
    document = what_if.document()
    assert (document["undo"], document["redo"], document["moved"]) == (0, 6, 0)
    for expected in makespans[1:3]:
        what_if.redo()
        assert what_if.outcome.trace.makespan_s == expected
    what_if.set_speed(0, 0.5)  # what was taken back is gone
    assert what_if.document()["redo"] == 0
    what_if.redo()
    assert what_if.document()["undo"] == 3


def test_undo_has_a_limit() -> None:
    graph, topology, assignments, _ = example()
    problem = dp.Problem(graph, topology)
    what_if = WhatIf(problem, assignments["critical-path"], ViewConfig(max_undo=3))
    for factor in (1.1, 1.2, 1.3, 1.4, 1.5):
        what_if.set_speed(0, factor)
    assert what_if.document()["undo"] == 3


def test_only_what_changed_is_sent(what_if: WhatIf) -> None:
    graph = what_if.graph
    late = int(what_if.outcome.trace.vertex[-1])
    before = packed_columns(what_if.view.columns, what_if.tick_s)
    device = (int(what_if.setting.devices[late]) + 1) % 4
    what_if.move([late], device)
    said = what_if.update(0)
    keep = said["trace"]["keep"]
    assert keep > 0
    now = listed(packed_columns(task_columns(what_if.outcome.trace), what_if.tick_s))
    for name, column in listed(before).items():
        assert column[:keep] + said["trace"]["tasks"][name] == now[name]
    assert said["trace"]["deviceOf"][late] == device
    assert "trace" not in what_if.update(1)
    what_if.move([late], 0)
    assert what_if.update(0)["trace"]["keep"] == 0  # a page that missed a change gets all
    assert graph.num_vertices == len(said["trace"]["deviceOf"])


def test_saving(what_if: WhatIf) -> None:
    graph, topology, _, _ = example()
    assert what_if.is_saved
    v = int(graph.assigned[0])
    what_if.move([v], (int(what_if.setting.devices[v]) + 1) % 4)
    assert not what_if.is_saved
    what_if.saved()
    assert what_if.is_saved
    assignment = what_if.outcome.assignment
    assert assignment.placer == "what-if"
    assignment.check(graph, topology)
    what_if.undo()
    assert not what_if.is_saved


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.move([], 0), "vertices must be"),
        (lambda w: w.move([10**6], 0), "vertices must be"),
        (lambda w: w.move([-1], 0), "vertices must be"),
        (lambda w: w.move([5], 4), "no device 4"),
        (lambda w: w.move([int(np.flatnonzero(w.graph.is_input)[0])], 0), "inputs have no device"),
        (lambda w: w.set_speed(9, 1.0), "no device 9"),
        (lambda w: w.set_speed(0, 0.0), "between"),
        (lambda w: w.set_speed(0, float("nan")), "between"),
        (lambda w: w.set_speed(0, float("inf")), "between"),
        (lambda w: w.set_bandwidth(99, 1e9), "no link 99"),
        (lambda w: w.set_bandwidth(0, 1.0), "between"),
    ],
)
def test_mistakes_change_nothing(what_if: WhatIf, change, message: str) -> None:
    with pytest.raises((AssignmentError, ConfigError), match=message):
        change(what_if)
    assert what_if.revision == 0
    assert what_if.document()["undo"] == 0


def test_a_graph_that_gives_the_seconds_of_transfers_has_no_bandwidths() -> None:
    graph = dp.GraphBuilder("g")
    a = graph.op("a", "matmul", reads=[], output_bytes=8, exec_s=1.0, transfer_s=1.0)
    graph.op("b", "matmul", reads=[a], output_bytes=8, exec_s=1.0, transfer_s=1.0)
    built, topology = graph.build(), dp.Topology.preset("reference:2")
    what_if = WhatIf(dp.Problem(built, topology), dp.place(built, topology, "single"))
    assert what_if.document()["bandwidth"] is None
    with pytest.raises(ConfigError, match="how long its transfers take"):
        what_if.set_bandwidth(0, 1e9)


def test_memory_is_planned_or_a_move_is_refused() -> None:
    graph, topology, _ = planned()
    assignment = dp.place(graph, topology, "m-etf")
    what_if = WhatIf(dp.Problem(graph, topology), assignment)
    what_if.move(graph.assigned.tolist(), 1)
    assert what_if.outcome.assignment.memory is not None
    tight = dp.Topology.uniform(2, flops_per_s=1e13, bandwidth_bytes_per_s=12e9, memory_bytes=16e6)
    even = WhatIf(dp.Problem(graph, tight), dp.place(graph, tight, "m-etf"))
    before = even.outcome
    with pytest.raises(OutOfMemoryError):
        even.move(graph.assigned.tolist(), 0)
    assert even.outcome is before
    assert (even.revision, even.moved) == (0, 0)
