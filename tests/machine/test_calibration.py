"""Calibration finds the costs that made the traces, and is not misled by outliers."""

from dataclasses import replace

import numpy as np
import pytest
from engine.playing_backend import machine, small_graph
from hypothesis import given
from hypothesis import strategies as st

from doppler.assignment import Assignment
from doppler.base.arrays import frozen
from doppler.cost import DefaultCostModel
from doppler.errors import ConfigError
from doppler.graph import Graph
from doppler.graph.signatures import signatures
from doppler.machine.calibration import (
    Calibration,
    calibrate,
    duration_errors,
)
from doppler.machine.evidence import KEPT
from doppler.machine.fitting import fit_link, tabulate_link
from doppler.machine.robust import Samples, differ, equal, typical_s
from doppler.programs import random_dag
from doppler.sim import Noise, SimConfig, Simulator
from doppler.topology import Device, Host, Link, Topology
from doppler.trace import Trace

UNKNOWN = Link("any", 1e9, lanes=1)


def runs(
    graph: Graph,
    topology: Topology,
    count: int = 8,
    *,
    devices: int | None = None,
    noise: float = 0,
) -> list[Trace]:
    """Traces of random assignments to the first devices."""
    rng = np.random.default_rng(0)
    config = SimConfig(noise=Noise(exec_sigma=noise, transfer_sigma=noise))
    size = devices or topology.num_devices
    chosen = [rng.integers(size, size=graph.num_vertices) for _ in range(count)]
    simulator = Simulator(topology, config)
    return [
        simulator.run(graph, Assignment(np.where(graph.is_input, -1, d)), seed=i)
        for i, d in enumerate(chosen)
    ]


def ignorant(truth: Topology) -> Topology:
    """The same machine with costs that are all wrong."""
    return replace(
        truth,
        devices=tuple(replace(d, memory_bytes_per_s=1.0) for d in truth.devices),
        links=tuple(replace(n, bandwidth_bytes_per_s=1e6, latency_s=1.0) for n in truth.links),
        host=replace(truth.host, dispatch_s=0.0, completion_s=0.0),
    )


def test_it_finds_the_costs_that_made_the_traces() -> None:
    graph, truth = small_graph(), machine(3)
    truth = replace(truth, host=Host(dispatch_s=2e-6, completion_s=5e-6, ahead=1))
    found = calibrate(ignorant(truth), graph, runs(graph, truth))
    want, got = (DefaultCostModel().costs(graph, t) for t in (truth, found))
    np.testing.assert_allclose(got.exec_s, want.exec_s, rtol=1e-9)
    np.testing.assert_allclose(got.latency_s, want.latency_s, rtol=1e-6)
    np.testing.assert_allclose(got.s_per_byte, want.s_per_byte, rtol=1e-6)
    assert found.host.dispatch_s == pytest.approx(2e-6)
    assert found.host.completion_s == pytest.approx(5e-6)
    assert found.host.ahead == 1
    assert max(duration_errors(found, graph, runs(graph, truth)).values()) < 1e-6


def test_what_is_known_of_the_host_stays_and_counts_towards_the_gap() -> None:
    graph, truth = small_graph(), machine(2)
    truth = replace(truth, host=Host(dispatch_s=2e-6, completion_s=5e-6))
    prior = replace(truth, host=Host(dispatch_s=4e-6))
    found = calibrate(prior, graph, runs(graph, truth))
    assert found.host.dispatch_s == 4e-6
    assert found.host.completion_s == pytest.approx(3e-6)
    known = replace(truth, host=Host(dispatch_s=4e-6, completion_s=9e-6))
    assert calibrate(known, graph, runs(graph, truth)).host == known.host


def test_a_kernel_seen_on_one_device_is_priced_on_all_that_are_alike() -> None:
    graph, truth = small_graph(), machine(4)
    found = calibrate(truth, graph, runs(graph, truth, devices=1))
    assert set(found.exec_s) == {s for s in signatures(graph) if s}
    for seconds in found.exec_s.values():
        assert len(set(seconds)) == 1
    assert found.links == truth.links  # nothing was moved


def test_devices_that_differ_keep_their_own_seconds() -> None:
    graph, truth = small_graph(), machine(2)
    slow = SimConfig(noise=Noise(slowdown=(1.0, 1.5)))
    rng = np.random.default_rng(0)
    traces = [
        Simulator(truth, slow).run(
            graph, Assignment(np.where(graph.is_input, -1, rng.integers(2, size=len(graph.kinds))))
        )
        for _ in range(20)
    ]
    for fast_s, slow_s in calibrate(truth, graph, traces).exec_s.values():
        assert slow_s == pytest.approx(1.5 * fast_s)


def test_devices_of_another_kind_get_seconds_in_proportion() -> None:
    graph, truth = small_graph(), machine(2)
    halved = Device("slow", {"float32": 5e11}, 5e10, launch_s=6e-6)
    truth = replace(truth, devices=(truth.devices[0], halved))
    calibration = Calibration(truth, graph)
    for trace in runs(graph, truth, devices=1):
        calibration.add(trace)
    vertex = int(graph.assigned[0])
    alone = np.where(graph.is_input, -1, 0)
    alone[vertex] = 1
    calibration.add(Simulator(truth).run(graph, Assignment(alone)))
    for fast_s, slow_s in calibration.topology().exec_s.values():
        assert slow_s == pytest.approx(2 * fast_s)


def test_noise_averages_out_and_traces_can_come_one_by_one() -> None:
    graph, truth = small_graph(), machine(3)
    traces = runs(graph, truth, 60, noise=0.1)
    calibration = Calibration(ignorant(truth), graph)
    for trace in traces:
        calibration.add(trace)
    found = calibration.topology()
    assert found == calibrate(ignorant(truth), graph, traces)
    assert duration_errors(found, graph, runs(graph, truth))["all"] < 0.03
    assert 0.03 < duration_errors(found, graph, traces)["all"] < 0.12


def test_the_newest_samples_count() -> None:
    graph, truth = small_graph(), machine(2)
    calibration = Calibration(truth, graph)
    for trace in runs(graph, truth, 5):
        calibration.add(trace)
    slower = SimConfig(noise=Noise(slowdown=(2.0, 2.0)))
    trace = Simulator(truth, slower).run(graph, Assignment(np.where(graph.is_input, -1, 0)))
    for _ in range(KEPT):
        calibration.add(trace)
    own = DefaultCostModel().costs(graph, truth).exec_s[:, 0]
    new = DefaultCostModel().costs(graph, calibration.topology()).exec_s[:, 0]
    np.testing.assert_allclose(new, 2 * own)


def test_kernels_of_other_graphs_stay() -> None:
    graph, truth = small_graph(), replace(machine(2), exec_s={"other": (1.0, 2.0)})
    found = calibrate(truth, graph, runs(graph, truth))
    assert found.exec_s["other"] == (1.0, 2.0)
    assert calibrate(truth, graph, []) == truth


def test_traces_of_other_graphs_and_machines_are_refused() -> None:
    graph, truth = small_graph(), machine(2)
    other = random_dag(vertices=5, depth=2)
    with pytest.raises(ConfigError, match="not one of this graph"):
        calibrate(truth, graph, runs(other, truth, 1))
    with pytest.raises(ConfigError, match="other devices"):
        calibrate(truth, graph, runs(graph, machine(3), 1))


def samples(link: Link, sizes: list[int], count: int = 5) -> dict[float, Samples]:
    seconds = {n: link.latency_s + n / link.bandwidth_bytes_per_s for n in sizes}
    return {n: equal([s] * count) for n, s in seconds.items()}


@pytest.mark.parametrize("sizes", [[1, 10**6], [10**4, 10**5, 10**6, 10**8], [0, 10**6]])
def test_a_link_is_fitted_exactly(sizes: list[int]) -> None:
    true = Link("any", 2e9, latency_s=3e-5)
    found = fit_link(UNKNOWN, samples(true, sizes))
    assert found.latency_s == pytest.approx(3e-5, rel=1e-4)
    assert found.bandwidth_bytes_per_s == pytest.approx(2e9, rel=1e-4)


def test_a_link_with_one_size_keeps_its_latency_if_it_can() -> None:
    true = Link("any", 2e9, latency_s=3e-5)
    found = fit_link(replace(UNKNOWN, latency_s=3e-5), samples(true, [10**6]))
    assert (found.latency_s, found.bandwidth_bytes_per_s) == (3e-5, pytest.approx(2e9))
    found = fit_link(replace(UNKNOWN, latency_s=1.0), samples(true, [10**6]))
    assert found.latency_s + 1e6 / found.bandwidth_bytes_per_s == pytest.approx(5.3e-4)
    found = fit_link(UNKNOWN, samples(true, [0]))
    assert found == replace(UNKNOWN, latency_s=pytest.approx(3e-5))


def test_a_link_that_gets_faster_with_size_has_no_negative_latency() -> None:
    took = {1e5: 1e-4, 1e6: 4e-3, 1e7: 4e-2}
    found = fit_link(UNKNOWN, {n: equal([s] * 3) for n, s in took.items()})
    assert found.latency_s == 0
    assert found.bandwidth_bytes_per_s == pytest.approx(2.5e8)


def test_a_size_that_is_off_hardly_moves_the_line() -> None:
    true = Link("any", 2e9, latency_s=3e-5)
    took = samples(true, [10**4, 10**5, 10**6, 10**7, 10**8])
    took[10**6] = took[10**6]._replace(seconds=3 * took[10**6].seconds)
    assert fit_link(UNKNOWN, took).bandwidth_bytes_per_s == pytest.approx(2e9, rel=0.01)


def test_many_small_transfers_do_not_decide_on_the_large() -> None:
    """One chunk of a copy through the host is slower than four, which overlap."""
    took = {8e3: 4.5e-5, 4e6: 1.9e-4, 1.7e7: 5e-4, 5.4e8: 1.28e-2}
    count = {8e3: 50, 4e6: 40, 1.7e7: 20, 5.4e8: 10}
    found = fit_link(UNKNOWN, {n: equal([took[n]] * count[n]) for n in took})
    large = found.latency_s + 5.4e8 / found.bandwidth_bytes_per_s
    assert large == pytest.approx(1.28e-2, rel=0.01)
    assert 4e-5 < found.latency_s < 1e-4


def test_links_that_differ_keep_their_own_speed() -> None:
    graph, truth = small_graph(), machine(3, by="source", rate=1e8)
    slow = replace(truth.links[0], bandwidth_bytes_per_s=5e7, latency_s=4e-5)
    different = replace(truth, links=(slow, *truth.links[1:]))
    found = calibrate(truth, graph, runs(graph, different, 20)).links
    costs = [link.latency_s + 1e4 / link.bandwidth_bytes_per_s for link in found]
    assert costs[0] == pytest.approx(2 * costs[1], rel=0.05)
    assert costs[2] == pytest.approx(costs[1], rel=0.01)


def test_what_transfers_of_a_size_take_is_known_where_it_is_no_line() -> None:
    graph, truth = small_graph(), machine(3, rate=1e8)
    traces = []
    for trace in runs(graph, truth, 10):
        rate = np.where(trace.moved_bytes > 1000, 1e8, 4e7)  # small ones are slow
        took = np.where(trace.is_transfer, trace.moved_bytes / rate, trace.end_s - trace.begin_s)
        traces.append(replace(trace, end_s=frozen(trace.begin_s + took)))
    found = calibrate(truth, graph, traces)
    assert duration_errors(found, graph, traces)["transfer"] < 1e-6
    line = replace(found, extra_transfer_s=())
    assert duration_errors(line, graph, traces)["transfer"] > 0.01


def test_a_link_that_is_a_line_has_nothing_beyond_it() -> None:
    true = Link("any", 2e9, latency_s=3e-5)
    found, extra = tabulate_link(UNKNOWN, samples(true, [10**4, 10**6, 10**8]))
    assert extra == ()
    assert found == fit_link(UNKNOWN, samples(true, [10**4, 10**6, 10**8]))


@given(st.dictionaries(st.integers(0, 10**9), st.floats(1e-6, 1.0), min_size=1))
def test_a_tabulated_link_gives_back_its_samples(seconds: dict[int, float]) -> None:
    link, extra = tabulate_link(UNKNOWN, {n: equal([s]) for n, s in seconds.items()})
    beyond = dict(extra)
    assert all(s >= 0 for s in beyond.values())
    for size, took in seconds.items():
        predicted = link.latency_s + size / link.bandwidth_bytes_per_s + beyond.get(size, 0.0)
        assert predicted == pytest.approx(took, rel=0.011)


def test_stalls_do_not_count() -> None:
    stalled = equal([1.0] * 16 + [50.0] * 4)
    assert typical_s(stalled.seconds) == 1.0
    assert typical_s([3.0]) == 3.0
    assert typical_s([1.0, 2.0, 3.0, 50.0], np.array([1.0, 1.0, 2.0, 1.0])) == 2.25
    assert not differ(equal([1.0, 2.0]), equal(np.ones(10)))  # too few
    assert not differ(Samples(np.full(9, 2.0), 10.0 ** -np.arange(9)), equal(np.ones(10)))
    assert not differ(equal(np.ones(10)), stalled)
    assert differ(equal(np.full(10, 1.1)), stalled)
    noisy = np.random.default_rng(0).normal(1.0, 0.2, 50)
    assert not differ(equal(noisy + 0.02), equal(noisy))


def test_skewed_durations_do_not_make_predictions_too_low() -> None:
    graph, truth = small_graph(), machine(3)
    traces = runs(graph, truth, 100, noise=0.5)  # log-normal, with the true seconds as their mean
    found = calibrate(ignorant(truth), graph, traces)
    alone = Assignment(np.where(graph.is_input, -1, 0))  # takes the sum of its kernels
    want, got = (Simulator(t).run(graph, alone).makespan_s for t in (truth, found))
    assert got == pytest.approx(want, rel=0.02)
    # The middle half of the samples, which is tempting, is far too low.
    ratio = np.random.default_rng(0).lognormal(-0.125, 0.5, 10_000)
    assert typical_s(ratio) == pytest.approx(1, abs=0.02)
    assert np.sort(ratio)[2500:7500].mean() < 0.92


def test_good_assignments_count_most() -> None:
    graph, truth = small_graph(), machine(2)
    slow = Simulator(truth, SimConfig(noise=Noise(slowdown=(8.0, 8.0))))
    alone = [np.where(graph.is_input, -1, d) for d in (0, 1)]
    good = [Simulator(truth).run(graph, Assignment(devices)) for devices in alone]
    mixed = np.where(graph.is_input, -1, np.arange(graph.num_vertices) % 2)
    bad = slow.run(graph, Assignment(mixed))
    ratio = bad.makespan_s / good[0].makespan_s
    assert ratio > 4
    want = DefaultCostModel().costs(graph, truth).exec_s
    got = DefaultCostModel().costs(graph, calibrate(truth, graph, [*good, bad])).exec_s
    assert (got[graph.assigned] <= (1 + 7 / ratio**2) * want[graph.assigned]).all()
    got = DefaultCostModel().costs(graph, calibrate(truth, graph, [bad])).exec_s
    np.testing.assert_allclose(got, 8 * want)  # better than nothing


def test_a_lucky_run_counts_no_more_than_others_of_its_assignment() -> None:
    graph, truth = small_graph(), machine(2)
    alone = Assignment(np.where(graph.is_input, -1, 0))
    factors = (0.5, 1.0, 1.5)
    simulators = [Simulator(truth, SimConfig(noise=Noise(slowdown=(f, f)))) for f in factors]
    found = calibrate(truth, graph, [simulator.run(graph, alone) for simulator in simulators])
    want, got = (DefaultCostModel().costs(graph, t).exec_s for t in (truth, found))
    np.testing.assert_allclose(got, want)


def test_errors_are_weighted_by_time() -> None:
    graph, truth = small_graph(), machine(2)
    (trace,) = runs(graph, truth, 1)
    longer = replace(trace, end_s=frozen(trace.begin_s + 2 * (trace.end_s - trace.begin_s)))
    errors = duration_errors(truth, graph, [trace, longer])
    assert list(errors)[-1] == "all"
    assert {"transfer", "matmul", "formation", "sum-reduction"} < set(errors)
    for off in errors.values():
        assert off == pytest.approx(1 / 3)  # half of two thirds of the time
