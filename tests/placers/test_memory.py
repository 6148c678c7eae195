"""What small memories force on every assignment, and what every placer makes of them."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples, graphs, topologies

from doppler.errors import OutOfMemoryError
from doppler.graph import Graph, GraphBuilder, build_graph
from doppler.placers import Placer, lower_bounds, place, placer_names
from doppler.placers.bounds.memory import allowed, runs_nowhere, why_nothing_fits
from doppler.placers.solution import SEARCHES
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.sim import SimConfig, Simulator, simulate
from doppler.topology import Device, Host, Link, Topology, preset

QuickPlacer = Callable[[str], Placer]


def machine(*memory_bytes: float, host: Host | None = None) -> Topology:
    """Devices of these memories, any number of transfers at once."""
    size = len(memory_bytes)
    route = np.zeros((size, size), int)
    np.fill_diagonal(route, -1)
    devices = tuple(Device(f"d{i}", memory_bytes=b) for i, b in enumerate(memory_bytes))
    return Topology("small", devices, (Link("l", lanes=0),), route, host or Host())


def all_assignments(graph: Graph, topology: Topology) -> np.ndarray:
    choices = [range(-1, 0) if i else range(topology.num_devices) for i in graph.is_input]
    return np.array(list(itertools.product(*choices)), np.int64).reshape(-1, graph.num_vertices)


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data(), strategy=st.sampled_from(["fifo", "critical-path", "depth-first"]))
def test_no_assignment_that_fits_is_below_the_bound(data: st.DataObject, strategy: str) -> None:
    memory = st.sampled_from([2.0, 4.0, 6.0, 10.0, float("inf")])
    topology = data.draw(topologies(max_devices=3, memory_bytes=memory))
    graph = data.draw(graphs(max_vertices=5, num_devices=topology.num_devices))
    graph = with_bytes(graph, data.draw(st.integers(0, 2**32)))
    table = all_assignments(graph, topology)
    makespans = Simulator(topology, SimConfig(strategy=strategy)).makespans(graph, table)
    assert makespans.min() >= lower_bounds(graph, topology).best_s * (1 - 1e-9)
    fits = np.isfinite(makespans)
    can = allowed(Problem(graph, topology))
    for row in table[fits]:
        assert can[graph.assigned, row[graph.assigned]].all()
    if why_nothing_fits(Problem(graph, topology)):
        assert not fits.any()


def with_bytes(graph: Graph, seed: int) -> Graph:
    """The graph with tensors of 0 to 3 bytes, so that memories of a few bytes matter.

    With temporaries of up to 2 bytes, or none.
    """
    columns = graph.columns()
    rng = np.random.default_rng(seed)
    columns["tensor_bytes"] = rng.integers(0, 4, size=graph.num_tensors).tolist()
    columns["temporary_bytes"] = rng.integers(0, 3, graph.num_vertices) * rng.integers(0, 2)
    return build_graph(**columns)


def test_a_device_too_small_for_a_vertex_does_not_count() -> None:
    """Each vertex is five times as fast on d0, which holds one byte less than it makes."""
    g = GraphBuilder("wide")
    for i in range(4):
        g.op(f"v{i}", "matmul", reads=[], output_bytes=10, exec_s=[1, 5, 5], transfer_s=1)
    graph = g.build()
    roomy, tight = machine(100, 100, 100), machine(9, 100, 100)
    assert lower_bounds(graph, roomy).memory_s == 0
    assert lower_bounds(graph, roomy).best_s == pytest.approx(4 / 1.4)
    assert lower_bounds(graph, tight).memory_s == lower_bounds(graph, tight).best_s == 10
    assert Simulator(tight).makespans(graph, np.array([[1, 1, 2, 2]])).tolist() == [10]


def test_working_bytes_are_what_a_vertex_reads_and_makes() -> None:
    g = GraphBuilder("sum")
    x = g.input("x", output_bytes=1000)  # inputs do not count
    a = g.op("a", "matmul", reads=[x], output_bytes=3, exec_s=1, transfer_s=1)
    b = g.op("b", "matmul", reads=[x], output_bytes=4, exec_s=1, transfer_s=1)
    g.op("c", "matmul", reads=[a, b, x], output_bytes=5.5, exec_s=1, transfer_s=1)
    graph = g.build()
    assert Problem(graph, machine(12, 12)).working_bytes.tolist() == [0, 3, 4, 3 + 4 + 6]
    assert runs_nowhere(Problem(graph, machine(12, 12))) == 3
    assert runs_nowhere(Problem(graph, machine(12, 13))) is None
    assert allowed(Problem(graph, machine(12, 13)))[3].tolist() == [False, True]


def with_weights(kind: str, size: float = 4, temporary: float = 0) -> Graph:
    """Three vertices in a row that make a byte each and read an input of their own."""
    g = GraphBuilder("weights")
    last: list[int] = []
    for i in range(3):
        w = g.input(f"w{i}", output_bytes=size, kind=kind)
        row = {"exec_s": 1, "transfer_s": 0.5, "temporary_bytes": temporary}
        last = [g.op(f"v{i}", "matmul", reads=[w, *last], output_bytes=1, **row)]
    return g.build()


def test_weights_that_do_not_fit_on_one_device_make_the_chain_move() -> None:
    for kind, memory, bound in (
        *(("everywhere", 2, 3), ("resident", 14, 3), ("resident", 13, 3.5)),
        *(("streamed", 14, 3), ("loaded", 13, 3.5)),  # in place: there are no links to the host
    ):
        graph, topology = with_weights(kind), machine(memory, memory)
        assert lower_bounds(graph, topology).best_s == bound, (kind, memory)
        makespans = Simulator(topology).makespans(graph, all_assignments(graph, topology))
        assert makespans.min() == bound
        assert np.isfinite(makespans[0]) == (bound == 3)


def test_what_never_fits_is_known() -> None:
    resident, problem = with_weights("resident"), Problem
    assert why_nothing_fits(problem(resident, machine(6, 6, 6))) == ""
    reason = why_nothing_fits(problem(resident, machine(5, 5)))
    assert reason == "vertex `v1` reads and makes 6 bytes, device `d0` holds 5"
    reason = why_nothing_fits(problem(with_weights("resident", temporary=7), machine(12, 11)))
    assert reason == "vertex `v1` reads and makes 6 bytes and takes 7 besides, device `d0` holds 12"
    reason = why_nothing_fits(problem(resident, machine(6, 6)))
    assert reason == "inputs and results that stay take 13 bytes, all devices together hold 12"
    assert why_nothing_fits(problem(with_weights("everywhere"), machine(2, 2))) == ""


def test_the_bound_counts_what_arrives_from_the_host() -> None:
    """Three inputs of 4 bytes at 2 bytes/s: 6 s over one link, and 1 s for the last vertex."""
    graph = build_graph(**with_weights("resident").columns() | {"transfer_s": None})
    topology = Topology.uniform(2, bandwidth_bytes_per_s=8, host_bandwidth_bytes_per_s=2)
    assert lower_bounds(graph, topology).best_s == 3
    bounds = lower_bounds(graph.cold(), topology)
    assert (bounds.path_s, bounds.arrival_s) == (5, 3)
    one = Topology.uniform(1, bandwidth_bytes_per_s=8, host_bandwidth_bytes_per_s=2)
    assert lower_bounds(graph.cold(), one).arrival_s == 6
    makespans = Simulator(one).makespans(graph.cold(), np.array([[-1, 0, -1, 0, -1, 0]]))
    assert makespans.tolist() == [7]


def stashed(depth: int, rng: np.random.Generator | None = None) -> Graph:
    """A chain down and up again, as in training: each step down leaves 10 bytes for its way up.

    All execs take 1 s and transfers 0.5 s, and each step up makes a byte; or random amounts.
    """
    g = GraphBuilder("stash")

    def op(name: str, reads: list[int], size: int) -> int:
        factors = np.ones(3) if rng is None else rng.uniform(0.5, 2, size=3)
        size, exec_s, transfer_s = (factors * (size, 1, 0.5)).tolist()
        return g.op(
            name, "matmul", reads=reads, output_bytes=size, exec_s=exec_s, transfer_s=transfer_s
        )

    down: list[int] = []
    for i in range(depth):
        down.append(op(f"down{i}", down[-1:], 10))
    last = down[-1]
    for i in reversed(range(depth)):
        last = op(f"up{i}", sorted({down[i], last}), 1)
    return g.build()


def test_no_chain_that_has_to_be_split_is_below_the_bound() -> None:
    forced = tight = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        graph, host = stashed(3, rng), Host(*rng.choice([0.0, 0.1], size=2), ahead=1)
        table = all_assignments(graph, machine(1, 1))
        memory = rng.uniform(0.7, 1.1) * graph.tensor_bytes.sum()
        topology = machine(memory, memory, host=host)
        fastest = Simulator(topology).makespans(graph, table).min()
        bounds = lower_bounds(graph, topology)
        assert fastest >= bounds.best_s * (1 - 1e-12)
        if np.isfinite(fastest) and bounds.memory_s > bounds.path_s:
            forced += 1
            tight += fastest <= bounds.memory_s * 1.01
    assert forced >= 20  # so that this tests something
    assert tight >= 5


def test_what_does_not_fit_on_one_device_is_moved() -> None:
    """All four stashes are there when down3 starts: 40 bytes. So something is moved: 8.5 s."""
    graph, host = stashed(4), Host(0.125, 0.25)
    for memory, moved in ((45, False), (39, True)):
        assert lower_bounds(graph, machine(memory, memory)).best_s == (8.5 if moved else 8)
        bounds = lower_bounds(graph, machine(memory, memory, host=host))
        # Eight hops of a dispatch and a completion, the last of which nobody waits for.
        path = 8 + 8 * 0.125 + 7 * 0.25
        assert bounds.path_s == path
        assert bounds.best_s == (path + 0.5 + 0.125 + 0.25 if moved else path)
    topology = machine(39, 39)
    makespans = Simulator(topology).makespans(graph, all_assignments(graph, topology))
    assert not np.isfinite(makespans[0])
    assert makespans.min() >= 8.5


def test_all_tensors_together_may_exceed_a_device_that_holds_the_run() -> None:
    """Memory is freed: 100 bytes in all run in 20, and nothing is to be moved."""
    g = GraphBuilder("chain")
    last = []
    for i in range(10):
        last = [g.op(f"v{i}", "matmul", reads=last, output_bytes=10, exec_s=1, transfer_s=1)]
    graph, topology = g.build(), machine(20, 20)
    assert lower_bounds(graph, topology).best_s == 10
    assert Simulator(topology).makespans(graph, np.zeros((1, 10), int)).tolist() == [10]


WIDE = random_dag(vertices=60, depth=4, bytes_per_flop=0.006, seed=0)
MACHINES = {
    "8 GB": (WIDE, preset("p100x4-8gb")),
    "one too small": (stashed(4), machine(39, 39)),
    "unequal": (stashed(4), machine(21, 45)),
    "hopeless": (stashed(4), machine(19, 19)),
}
ERROR = r"^device `\w+` is out of memory: .*vertex `[^`]+` needs \d+ bytes, \d+ are free"


@pytest.mark.parametrize("which", MACHINES)
@pytest.mark.parametrize("name", placer_names())
def test_every_placer_fits_or_says_what_does_not(name: str, which: str, quick: QuickPlacer) -> None:
    graph, topology = MACHINES[which]
    assignment = quick(name).place(Problem(graph, topology))
    if np.isfinite(Simulator(topology).makespans(graph, [assignment])[0]):
        assert which != "hopeless"
        assert place(graph, topology, quick(name)) == assignment
        return
    if topology.has_host_links:
        found = place(graph, topology, quick(name))
        assert found.memory is not None
        assert np.array_equal(found.devices, assignment.devices)
        assert np.isfinite(simulate(graph, topology, found).makespan_s)
        return
    with pytest.raises(OutOfMemoryError, match=ERROR) as raised:
        place(graph, topology, quick(name))
    hint = raised.value.hint or ""
    assert ("no assignment can run" in hint) == (which == "hopeless")
    assert which == "hopeless" or name not in SEARCHES


@pytest.mark.parametrize("name", [*SEARCHES, "m-etf", "m-sct"])
def test_placers_that_know_memory_find_what_fits(name: str, quick: QuickPlacer) -> None:
    for which in ("8 GB", "one too small", "unequal"):
        graph, topology = MACHINES[which]
        assignment = place(graph, topology, quick(name))
        assert np.isfinite(simulate(graph, topology, assignment).makespan_s)


def test_the_hint_names_placers_that_know_memory(quick: QuickPlacer) -> None:
    graph, topology = MACHINES["one too small"]
    with pytest.raises(OutOfMemoryError, match=r"hint: `single` made .*: try m-etf, .* or auto"):
        place(graph, topology, "single")
    graph, topology = MACHINES["hopeless"]
    with pytest.raises(OutOfMemoryError, match="vertex `down1` reads and makes 20 bytes"):
        place(graph, topology, quick("auto"))
