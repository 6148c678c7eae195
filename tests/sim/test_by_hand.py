"""Makespans and traces worked out by hand, on graphs of a few vertices."""

from dataclasses import replace

import numpy as np
import pytest

from doppler.assignment import Assignment
from doppler.errors import AssignmentError, ConfigError, OutOfMemoryError, UnknownNameError
from doppler.graph import Graph, GraphBuilder
from doppler.sim import ReferenceSimulator, SimConfig, Simulator
from doppler.topology import Device, Host, Link, Topology
from doppler.trace import Trace

BOTH = pytest.mark.parametrize("simulator", [Simulator, ReferenceSimulator])


def machine(
    devices: int = 2,
    *,
    slots: int = 1,
    lanes: int = 1,
    shared: bool = False,
    host: Host = Host(),  # noqa: B008
    memory: float = float("inf"),
) -> Topology:
    """Equal devices; every ordered pair its own link, or all pairs one shared link."""
    pairs = [(a, b) for a in range(devices) for b in range(devices) if a != b]
    route = np.full((devices, devices), -1)
    for i, (a, b) in enumerate(pairs):
        route[a, b] = 0 if shared else i
    links = 1 if shared else max(len(pairs), 1)
    return Topology(
        "by hand",
        tuple(Device(f"d{i}", slots=slots, memory_bytes=memory) for i in range(devices)),
        tuple(Link(f"l{i}", lanes=lanes) for i in range(links)),
        route,
        host,
    )


def chain_and_fork() -> Graph:
    """a(2) → b(3) → d(1) and a → c(4) → d; every tensor takes 1 s to move and has 1 byte."""
    g = GraphBuilder("diamond")
    x = g.input("x", output_bytes=1)
    a = g.op("a", "matmul", reads=[x], output_bytes=1, exec_s=2, transfer_s=1)
    b = g.op("b", "matmul", reads=[a], output_bytes=1, exec_s=3, transfer_s=1)
    c = g.op("c", "matmul", reads=[a], output_bytes=1, exec_s=4, transfer_s=1)
    g.op("d", "matmul", reads=[b, c], output_bytes=1, exec_s=1, transfer_s=1)
    return g.build()


def independent(*exec_s: float) -> Graph:
    """Vertices v0, v1, … that read nothing."""
    g = GraphBuilder("independent")
    for i, seconds in enumerate(exec_s):
        g.op(f"v{i}", "matmul", reads=[], output_bytes=1, exec_s=seconds, transfer_s=1)
    return g.build()


def times(trace: Trace) -> dict[str, tuple[float, float]]:
    """Begin and end of each exec by vertex name, of each transfer by `name→device`."""
    result = {}
    for row in range(len(trace.vertex)):
        name = trace.vertex_names[trace.vertex[row]]
        if trace.tensor[row] >= 0:
            name += f"→{trace.device[row]}"
        result[name] = (float(trace.begin_s[row]), float(trace.end_s[row]))
    return result


@BOTH
def test_one_device_runs_everything_in_sequence(simulator: type[Simulator]) -> None:
    trace = simulator(machine()).run(chain_and_fork(), Assignment([-1, 0, 0, 0, 0]))
    assert times(trace) == {"a": (0, 2), "b": (2, 5), "c": (5, 9), "d": (9, 10)}


@BOTH
def test_two_devices_move_what_the_other_needs(simulator: type[Simulator]) -> None:
    trace = simulator(machine()).run(chain_and_fork(), Assignment([-1, 0, 0, 1, 0]))
    assert times(trace) == {
        "a": (0, 2),
        "b": (2, 5),
        "a→1": (2, 3),
        "c": (3, 7),
        "c→0": (7, 8),
        "d": (8, 9),
    }


@BOTH
def test_a_tensor_goes_to_a_device_once_for_all_its_readers(simulator: type[Simulator]) -> None:
    trace = simulator(machine()).run(chain_and_fork(), Assignment([-1, 0, 1, 1, 1]))
    assert times(trace) == {"a": (0, 2), "a→1": (2, 3), "b": (3, 6), "c": (6, 10), "d": (10, 11)}


@BOTH
def test_slots_run_side_by_side(simulator: type[Simulator]) -> None:
    trace = simulator(machine(1, slots=2)).run(chain_and_fork(), Assignment([-1, 0, 0, 0, 0]))
    assert times(trace) == {"a": (0, 2), "b": (2, 5), "c": (2, 6), "d": (6, 7)}


def two_transfers() -> tuple[Graph, Assignment]:
    """p and q on device 0 and 1 end at 1 s; r on 2 reads both; a transfer takes 2 s."""
    g = GraphBuilder("join")
    p = g.op("p", "matmul", reads=[], output_bytes=1, exec_s=1, transfer_s=2)
    q = g.op("q", "matmul", reads=[], output_bytes=1, exec_s=1, transfer_s=2)
    g.op("r", "matmul", reads=[p, q], output_bytes=1, exec_s=1, transfer_s=2)
    return g.build(), Assignment([0, 1, 2])


@BOTH
@pytest.mark.parametrize(
    ("topology", "makespan"),
    [
        (machine(3), 4),  # each pair has its link
        (machine(3, shared=True), 6),  # one lane for all
        (machine(3, shared=True, lanes=2), 4),
        (machine(3, shared=True, lanes=0), 4),  # no limit
    ],
)
def test_lanes_of_shared_links(
    simulator: type[Simulator], topology: Topology, makespan: float
) -> None:
    graph, assignment = two_transfers()
    assert simulator(topology).run(graph, assignment).makespan_s == makespan


@BOTH
def test_the_host_starts_one_task_at_a_time(simulator: type[Simulator]) -> None:
    topology = machine(2, host=Host(dispatch_s=1))
    trace = simulator(topology).run(independent(5, 5), Assignment([0, 1]))
    assert times(trace) == {"v0": (1, 6), "v1": (2, 7)}


@BOTH
def test_what_the_host_starts_ahead_begins_without_it(simulator: type[Simulator]) -> None:
    """Two at once hide the dispatch of the second; the third waits for the first to end."""
    graph, on_one = independent(5, 5, 5), Assignment([0, 0, 0])
    without = simulator(machine(1, host=Host(dispatch_s=1))).run(graph, on_one)
    assert times(without) == {"v0": (1, 6), "v1": (7, 12), "v2": (13, 18)}
    ahead = simulator(machine(1, host=Host(dispatch_s=1, ahead=1))).run(graph, on_one)
    assert times(ahead) == {"v0": (1, 6), "v1": (6, 11), "v2": (11, 16)}


@BOTH
def test_what_was_started_ahead_keeps_its_turn(simulator: type[Simulator]) -> None:
    """c is more urgent than b, but b was started before c was ready."""
    g = GraphBuilder("turns")
    a = g.op("a", "matmul", reads=[], output_bytes=1, exec_s=2, transfer_s=1)
    g.op("b", "matmul", reads=[], output_bytes=1, exec_s=2, transfer_s=1)
    g.op("c", "matmul", reads=[a], output_bytes=1, exec_s=9, transfer_s=1)
    g.op("d", "matmul", reads=[], output_bytes=1, exec_s=2, transfer_s=1)
    config = SimConfig(strategy="critical-path")
    for ahead, order in ((0, "acbd"), (1, "abcd")):
        topology = machine(1, host=Host(ahead=ahead))
        trace = simulator(topology, config).run(g.build(), Assignment([0, 0, 0, 0]))
        assert "".join(trace.vertex_names[v] for v in trace.vertex) == order


@BOTH
def test_an_end_frees_the_slot_at_once_but_is_seen_later(simulator: type[Simulator]) -> None:
    g = GraphBuilder("pair and single")
    a = g.op("a", "matmul", reads=[], output_bytes=1, exec_s=2, transfer_s=1)
    g.op("b", "matmul", reads=[a], output_bytes=1, exec_s=2, transfer_s=1)
    g.op("c", "matmul", reads=[], output_bytes=1, exec_s=3, transfer_s=1)
    topology = machine(1, host=Host(completion_s=0.5))
    trace = simulator(topology).run(g.build(), Assignment([0, 0, 0]))
    assert times(trace) == {"a": (0, 2), "c": (2, 5), "b": (5, 7)}
    alone = simulator(machine(2, host=Host(completion_s=0.5))).run(g.build(), Assignment([0, 1, 0]))
    assert times(alone) == {"a": (0, 2), "c": (2, 5), "a→1": (2.5, 3.5), "b": (4, 6)}


def wide() -> Graph:
    """Three entries and what follows them, so that every strategy picks another order.

    p(1) → q(1) → s(1), and r(6); levels: p 0, r 0, z 0, q 1, s 2; z(1) comes first by number.
    """
    g = GraphBuilder("wide")
    g.op("z", "matmul", reads=[], output_bytes=0, exec_s=1, transfer_s=0)
    p = g.op("p", "matmul", reads=[], output_bytes=0, exec_s=1, transfer_s=0)
    q = g.op("q", "matmul", reads=[p], output_bytes=0, exec_s=1, transfer_s=0)
    g.op("s", "matmul", reads=[q], output_bytes=0, exec_s=1, transfer_s=0)
    g.op("r", "matmul", reads=[], output_bytes=0, exec_s=6, transfer_s=0)
    return g.build()


@BOTH
@pytest.mark.parametrize(
    ("strategy", "order"),
    [
        ("fifo", "zprqs"),  # z p r are ready at 0; q at 2, s later
        ("depth-first", "zpqsr"),  # q and s are deeper than r
        ("breadth-first", "zprqs"),
        ("critical-path", "rpqzs"),  # r has 6 s to the exit, p 3, q 2, z and s 1
        ("order", "rzpqs"),
    ],
)
def test_strategies(simulator: type[Simulator], strategy: str, order: str) -> None:
    graph = wide()
    chosen = np.array([graph.vertex_names.index(name) for name in "rzpqs"])
    assignment = Assignment(np.zeros(5, int), chosen)
    trace = simulator(machine(1), SimConfig(strategy=strategy)).run(graph, assignment)
    assert "".join(trace.vertex_names[v] for v in trace.vertex) == order


@BOTH
def test_random_strategy_follows_the_seed(simulator: type[Simulator]) -> None:
    graph = independent(*[1.0] * 8)
    config = SimConfig(strategy="random")
    runs = [
        tuple(simulator(machine(1), config).run(graph, Assignment([0] * 8), seed).vertex.tolist())
        for seed in (0, 0, 1, 2, 3)
    ]
    assert runs[0] == runs[1]
    assert len(set(runs)) == 4


@BOTH
def test_a_transfer_is_as_urgent_as_its_most_urgent_reader(simulator: type[Simulator]) -> None:
    g = GraphBuilder("urgent")
    a = g.op("a", "matmul", reads=[], output_bytes=1, exec_s=1, transfer_s=2)
    b = g.op("b", "matmul", reads=[], output_bytes=1, exec_s=1, transfer_s=2)
    g.op("late", "matmul", reads=[a], output_bytes=1, exec_s=1, transfer_s=2)
    g.op("soon", "matmul", reads=[b], output_bytes=1, exec_s=9, transfer_s=2)
    graph, topology = g.build(), machine(2, slots=2)
    trace = simulator(topology, SimConfig(strategy="critical-path")).run(
        graph, Assignment([0, 0, 1, 1])
    )
    assert times(trace)["b→1"] == (1, 3)
    assert times(trace)["a→1"] == (3, 5)


@BOTH
def test_barriers_keep_levels_and_their_transfers_apart(simulator: type[Simulator]) -> None:
    """a and b run, then all transfers, then the next level: nothing overlaps."""
    g = GraphBuilder("levels")
    a = g.op("a", "matmul", reads=[], output_bytes=1, exec_s=1, transfer_s=2)
    b = g.op("b", "matmul", reads=[], output_bytes=1, exec_s=4, transfer_s=2)
    g.op("c", "matmul", reads=[a], output_bytes=1, exec_s=1, transfer_s=2)
    g.op("d", "matmul", reads=[b], output_bytes=1, exec_s=1, transfer_s=2)
    graph, assignment = g.build(), Assignment([0, 1, 1, 1])
    free = simulator(machine()).run(graph, assignment)
    assert times(free) == {"a": (0, 1), "b": (0, 4), "a→1": (1, 3), "c": (4, 5), "d": (5, 6)}
    bulk = simulator(machine(), SimConfig(synchronous=True)).run(graph, assignment)
    # d was ready before c, and goes first now.
    assert times(bulk) == {"a": (0, 1), "b": (0, 4), "a→1": (4, 6), "d": (6, 7), "c": (7, 8)}


def producer_consumers() -> Graph:
    """p makes 6 bytes, which c reads to make 2; q makes 4 bytes and nobody reads them."""
    g = GraphBuilder("memory")
    p = g.op("p", "matmul", reads=[], output_bytes=6, exec_s=1, transfer_s=1)
    g.op("c", "matmul", reads=[p], output_bytes=2, exec_s=1, transfer_s=1)
    g.op("q", "matmul", reads=[], output_bytes=4, exec_s=1, transfer_s=1)
    return g.build()


@BOTH
@pytest.mark.parametrize(
    ("memory", "q_begins"),
    [
        (12, 0),  # p and q fit side by side, and c's output too
        (9, 2),  # q waits until c is done with p's output
    ],
)
def test_a_task_waits_for_memory(
    simulator: type[Simulator], memory: float, q_begins: float
) -> None:
    topology = machine(1, slots=2, memory=memory)
    trace = simulator(topology).run(producer_consumers(), Assignment([0, 0, 0]))
    assert times(trace)["q"] == (q_begins, q_begins + 1)
    unlimited = simulator(topology, SimConfig(limit_memory=False))
    assert times(unlimited.run(producer_consumers(), Assignment([0, 0, 0])))["q"] == (0, 1)


@BOTH
def test_a_received_copy_occupies_memory_until_it_is_read(simulator: type[Simulator]) -> None:
    """On d1: q's 4 bytes stay, the copy of p takes 6, c 2; e's 6 fit once c has read the copy."""
    g = GraphBuilder("copy")
    p = g.op("p", "matmul", reads=[], output_bytes=6, exec_s=1, transfer_s=1)
    c = g.op("c", "matmul", reads=[p], output_bytes=2, exec_s=1, transfer_s=1)
    g.op("e", "matmul", reads=[c], output_bytes=6, exec_s=1, transfer_s=1)
    g.op("q", "matmul", reads=[], output_bytes=4, exec_s=1, transfer_s=1)
    graph, assignment = g.build(), Assignment([0, 1, 1, 1])
    trace = simulator(machine(2, memory=12)).run(graph, assignment)
    assert times(trace) == {"p": (0, 1), "q": (0, 1), "p→1": (1, 2), "c": (2, 3), "e": (3, 4)}
    with pytest.raises(OutOfMemoryError, match=r"vertex `c` needs 2 bytes, 1 are free"):
        simulator(machine(2, memory=11)).run(graph, assignment)


@BOTH
def test_out_of_memory_names_device_vertex_and_bytes(simulator: type[Simulator]) -> None:
    with pytest.raises(OutOfMemoryError, match=r"`d0`.*vertex `p` needs 6 bytes, 1 are free"):
        simulator(machine(1, memory=5)).run(producer_consumers(), Assignment([0, 0, 0]))
    topology = replace(
        machine(2),
        devices=(Device("big", memory_bytes=100), Device("small", memory_bytes=3)),
    )
    with pytest.raises(
        OutOfMemoryError, match=r"`small`.*copy of the output of vertex `p` needs 6"
    ):
        simulator(topology).run(producer_consumers(), Assignment([0, 1, 0]))


def with_inputs(kind: str, temporary: float = 0) -> Graph:
    """a reads x, b reads y, of 4 bytes each; c reads what they make, 1 byte each."""
    g = GraphBuilder("inputs")
    x, y = (
        g.op(n, "input", reads=[], output_bytes=4, input_kind=kind, exec_s=0, transfer_s=2)
        for n in "xy"
    )
    row = {"exec_s": 1, "transfer_s": 1, "output_bytes": 1, "temporary_bytes": temporary}
    a, b = (g.op(n, "matmul", reads=[t], **row) for n, t in (("a", x), ("b", y)))
    g.op("c", "matmul", reads=[a, b], **row)
    return g.build()


TOGETHER = Assignment([-1, -1, 0, 0, 0])


@BOTH
@pytest.mark.parametrize("mode", ["dynamic", "fixed"])
def test_inputs_that_arrive_queue_for_the_link_to_the_host(
    simulator: type[Simulator], mode: str
) -> None:
    config = SimConfig(mode=mode)
    topology = replace(machine(2), links=(Link("l0"), Link("l1"), Link("host")), host_links=(2, 2))
    for kind in ("streamed", "loaded"):
        trace = simulator(topology, config).run(with_inputs(kind), Assignment([-1, -1, 0, 1, 0]))
        assert times(trace) == {
            "x→0": (0, 2),
            "y→1": (2, 4),
            "a": (2, 3),
            "b": (4, 5),
            "b→0": (5, 6),
            "c": (6, 7),
        }
    for kind in ("resident", "everywhere"):
        trace = simulator(topology, config).run(with_inputs(kind), TOGETHER)
        assert times(trace) == {"a": (0, 1), "b": (1, 2), "c": (2, 3)}
    without = simulator(machine(2), config).run(with_inputs("streamed"), TOGETHER)
    assert times(without) == {"a": (0, 1), "b": (1, 2), "c": (2, 3)}


@BOTH
@pytest.mark.parametrize("mode", ["dynamic", "fixed"])
@pytest.mark.parametrize(
    ("kind", "least_bytes"),
    [
        ("everywhere", 3),  # what a, b and c make
        ("resident", 8 + 3),
        ("loaded", 8 + 3),
        ("streamed", 8 + 1),  # x has left when b starts
    ],
)
def test_what_inputs_take_of_the_memory(
    simulator: type[Simulator], mode: str, kind: str, least_bytes: float
) -> None:
    graph, config = with_inputs(kind), SimConfig(mode=mode)
    assert simulator(machine(1, memory=least_bytes), config).run(graph, TOGETHER).makespan_s == 3
    with pytest.raises(OutOfMemoryError, match="`d0` is out of memory"):
        simulator(machine(1, memory=least_bytes - 1), config).run(graph, TOGETHER)


@BOTH
@pytest.mark.parametrize("mode", ["dynamic", "fixed"])
def test_temporaries_are_given_back(simulator: type[Simulator], mode: str) -> None:
    """With two slots, a and b run side by side where both have room for their temporaries."""
    graph, config = with_inputs("everywhere", temporary=10), SimConfig(mode=mode)
    for memory, makespan_s in ((22, 2), (21, 3), (13, 3)):
        topology = machine(1, slots=2, memory=memory)
        assert simulator(topology, config).run(graph, TOGETHER).makespan_s == makespan_s
    with pytest.raises(OutOfMemoryError, match="vertex `c` needs 11 bytes, 10 are free"):
        simulator(machine(1, memory=12), config).run(graph, TOGETHER)


@BOTH
def test_out_of_memory_names_the_largest_inputs(simulator: type[Simulator]) -> None:
    for memory, vertex in ((10, "c"), (5, "a")):
        with pytest.raises(OutOfMemoryError) as raised:
            simulator(machine(1, memory=memory)).run(with_inputs("resident"), TOGETHER)
        error = raised.value
        assert f"vertex `{vertex}` needs 1 bytes, 0 are free" in error.message
        assert f"inputs take 8 of its {memory} bytes, the largest: `x` 4, `y` 4" in error.message
        assert "--inputs everywhere" in (error.hint or "")


def test_batches_say_infinity_where_memory_never_suffices() -> None:
    graph, topology = producer_consumers(), machine(2, slots=2, memory=9)
    makespans = Simulator(topology).makespans(graph, np.array([[0, 0, 0], [1, 1, 0]]))
    assert makespans.tolist() == [3, 2]
    tight = Simulator(machine(2, memory=5)).makespans(graph, np.array([[0, 0, 0]]))
    assert tight.tolist() == [float("inf")]


def test_a_device_is_lent_what_the_task_lacks_that_lacks_least() -> None:
    """q fits into 5 bytes; then p lacks 5 of its 6, and c, while p's output is there, its 2."""
    graph, topology, assignment = producer_consumers(), machine(2, memory=5), Assignment([0, 0, 0])
    trace, lent_bytes = ReferenceSimulator(topology).run_with_loans(graph, assignment)
    assert times(trace) == {"q": (0, 1), "p": (1, 2), "c": (2, 3)}
    assert lent_bytes.tolist() == [7, 0]
    # Beside q, a copy of p lacks 5 bytes and c 2; where p is made it lacks one.
    rows = np.array([[0, 0, 0], [0, 1, 1], [1, 1, 0]])
    assert Simulator(topology).lent_shares(graph, rows).tolist() == [0.7, 0.8, 0.3]
    assert Simulator(machine(2, memory=12)).lent_shares(graph, rows).tolist() == [0, 0, 0]


def test_a_batch_equals_single_runs_whatever_the_threads() -> None:
    rng = np.random.default_rng(0)
    graph, topology = chain_and_fork(), machine(3, host=Host(0.1, 0.2))
    devices = rng.integers(3, size=(100, graph.num_vertices))
    devices[:, 0] = -1
    simulator = Simulator(topology)
    single = [simulator.run(graph, Assignment(row)).makespan_s for row in devices]
    for threads in (None, 1, 2, 5):
        assert simulator.makespans(graph, devices, threads=threads).tolist() == single
    assert simulator.makespans(graph, devices[:0]).tolist() == []


def test_what_does_not_fit_is_refused() -> None:
    graph, simulator = chain_and_fork(), Simulator(machine(2))
    with pytest.raises(AssignmentError, match="expected"):
        simulator.makespans(graph, np.zeros((3, 2), int))
    with pytest.raises(AssignmentError, match="has device 2"):
        simulator.makespans(graph, np.array([[-1, 0, 1, 2, 0]]))
    with pytest.raises(AssignmentError, match="is an input"):
        simulator.makespans(graph, np.array([[-1, 0, 1, 1, 0], [0, 0, 1, 1, 0]]))
    with pytest.raises(AssignmentError, match="needs an assignment with an order"):
        Simulator(machine(2), SimConfig(strategy="order")).run(graph, Assignment([-1, 0, 0, 0, 0]))
    with pytest.raises(UnknownNameError, match="did you mean `fifo`"):
        SimConfig(strategy="fifi")
    with pytest.raises(ConfigError, match="threads"):
        simulator.makespans(graph, np.array([[-1, 0, 1, 1, 0]]), threads=0)
