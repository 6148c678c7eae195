import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import devices_for, graphs, topologies
from tight import tight_problem

from doppler.errors import ConfigError, Interrupted
from doppler.graph import GraphBuilder
from doppler.placers import lower_bounds, make_placer
from doppler.placers.search import annealing as search_module
from doppler.placers.search.annealing import (
    SLOWER,
    InstantClock,
    SearchConfig,
    search,
    starting_points,
)
from doppler.placers.search.genetic import GeneticConfig, GeneticPlacer
from doppler.placers.search.improver import PRICING, make_chain, make_judge, make_neighbourhood
from doppler.placers.search.move_model import blank_model
from doppler.problem import Problem
from doppler.programs import chainmm, random_dag
from doppler.sharding import shard
from doppler.sim import Noise, SimConfig, Simulator
from doppler.topology import Device, Topology, preset

QUICK = SearchConfig(evaluations=2000, chains=2)


def test_search_never_returns_worse_than_where_it_began() -> None:
    topology = preset("p100x4")
    for seed in range(3):
        graph = random_dag(vertices=40, depth=6, seed=seed)
        starts = starting_points(Problem(graph, topology), seed)
        result = search(Problem(graph, topology), starts, QUICK, seed=seed)
        makespans = Simulator(topology).makespans(graph, np.array(starts))
        assert result.cost_s <= makespans.min()
        assert Simulator(topology).makespans(graph, result.devices[None])[0] == result.cost_s


@settings(max_examples=25)
@given(data=st.data())
def test_what_search_reports_is_what_the_simulator_says(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    graph = data.draw(graphs(max_vertices=8, num_devices=topology.num_devices))
    start = data.draw(devices_for(graph, topology))
    result = search(Problem(graph, topology), [start], SearchConfig(evaluations=60, chains=1))
    assert Simulator(topology).makespans(graph, result.devices[None])[0] == result.cost_s
    assert result.cost_s >= lower_bounds(graph, topology).best_s * (1 - 1e-9)


def test_search_finds_the_optimum_of_a_small_graph() -> None:
    """Four pairs of 1 s each on four devices, transfers of 5 s: each pair on its own, 2 s."""
    g = GraphBuilder("pairs")
    for i in range(4):
        t = g.op(f"a{i}", "matmul", reads=[], output_bytes=1, exec_s=1, transfer_s=5)
        g.op(f"b{i}", "matmul", reads=[t], output_bytes=1, exec_s=1, transfer_s=5)
    graph = g.build()
    for hot in (0.0, 1e-3):
        config = SearchConfig(evaluations=3000, chains=2, hot=hot)
        assert (
            search(Problem(graph, preset("reference:4")), [np.zeros(8, int)], config).cost_s == 2.0
        )


def test_regions_leave_a_device_that_no_vertex_leaves_alone() -> None:
    """A chain of 30 s on the second device, of 60 s on the first; each transfer takes 10 s."""
    g = GraphBuilder("chain")
    last: list = []
    for i in range(30):
        op = g.op(f"v{i}", "matmul", reads=last, output_bytes=1, exec_s=[2, 1], transfer_s=10)
        last = [op]
    problem = Problem(g.build(), preset("reference:2"))
    config = SearchConfig(evaluations=3000, chains=1, hot=0.0)
    assert search(problem, [np.zeros(30, int)], config).cost_s == 30.0


def test_the_worst_chain_joins_the_best_when_half_of_the_time_is_over() -> None:
    graph, topology = random_dag(vertices=30, depth=5, seed=0), preset("p100x4")
    problem = Problem(graph, topology)
    starts = [placer.place(problem).devices for placer in map(make_placer, ("heft", "single"))]
    annealer = search_module.Annealer(problem, starts, SearchConfig(chains=2), 0)
    costs = []
    for number, share in enumerate((0.1, 0.4, 0.6)):
        annealer._advance(number, share, 0)  # without moves
        costs.append([float(chain.cost[0]) for chain in annealer.chains])
    assert costs[0] == costs[1]
    assert costs[1][0] < costs[1][1]
    assert costs[2] == [costs[1][0]] * 2


def test_same_seed_same_search() -> None:
    graph, topology = random_dag(vertices=30, depth=5, seed=0), preset("v100x8")
    starts = starting_points(Problem(graph, topology), 0)
    first, second = (search(Problem(graph, topology), starts, QUICK, seed=3) for _ in range(2))
    assert first.devices.tolist() == second.devices.tolist()
    assert first.evaluations == second.evaluations


def test_history_falls_and_counts_evaluations() -> None:
    graph, topology = shard(chainmm(size=64), 8), preset("v100x8")
    result = search(Problem(graph, topology), [np.where(graph.is_input, -1, 0)], QUICK)
    costs = [cost for _, _, cost in result.history]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == result.cost_s
    assert 1900 <= result.evaluations <= 2100


def test_ctrl_c_returns_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, topology = random_dag(seed=0), preset("p100x4")
    start = np.where(graph.is_input, -1, 0)
    calls = []
    advance = search_module.Annealer._advance

    def interrupted(self: search_module.Annealer, *arguments: object) -> None:
        calls.append(arguments)
        advance(self, *arguments)  # type: ignore[arg-type]
        if len(calls) == 5:
            raise Interrupted

    monkeypatch.setattr(search_module.Annealer, "_advance", interrupted)
    result = search(Problem(graph, topology), [start], SearchConfig(seconds=1000))
    assert len(calls) == 5
    assert result.interrupted
    assert result.cost_s < Simulator(topology).makespans(graph, start[None])[0]


def test_robust_search_minimises_over_draws_of_the_noise() -> None:
    graph, topology = random_dag(vertices=30, depth=5, seed=2), preset("p100x4")
    sim = SimConfig(noise=Noise(exec_sigma=0.5, transfer_sigma=0.5))
    starts = starting_points(Problem(graph, topology), 0)
    for quantile in (None, 0.9):
        config = SearchConfig(evaluations=4000, chains=1, draws=5, quantile=quantile, sim=sim)
        result = search(Problem(graph, topology), starts, config, seed=0)
        simulator = Simulator(topology, sim)
        draws = [simulator.makespans(graph, result.devices[None], seed=s)[0] for s in range(5)]
        expected = np.mean(draws) if quantile is None else sorted(draws)[4]
        assert np.isclose(result.cost_s, expected, rtol=1e-12)


def test_memory_limits_are_respected() -> None:
    topology = preset("p100x4-8gb")
    graph = random_dag(vertices=60, depth=4, bytes_per_flop=0.006, seed=0)
    starts = starting_points(Problem(graph, topology), 0)
    result = search(Problem(graph, topology), starts, QUICK)
    assert np.isfinite(Simulator(topology).makespans(graph, result.devices[None])[0])


@pytest.mark.parametrize(
    "options",
    [
        *({"seconds": 0}, {"evaluations": 0}, {"chains": 0}, {"draws": 0}, {"quantile": 2}),
        *({"hot": -1}, {"hotter": 0}, {"price": -1}, {"price_step": 0.9}),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        SearchConfig(**options)  # type: ignore[arg-type]


def test_genetic_improves_on_its_seeds() -> None:
    graph, topology = random_dag(seed=1), preset("p100x4")
    starts = starting_points(Problem(graph, topology), 0)
    placer = GeneticPlacer(GeneticConfig(generations=20, population=32))
    simulator = Simulator(topology)
    found = simulator.run(graph, placer.place(Problem(graph, topology))).makespan_s
    assert found <= simulator.makespans(graph, np.array(starts)).min()
    with pytest.raises(ConfigError):
        GeneticConfig(elite=0.9, mutants=0.2)


def test_search_says_infinity_where_no_assignment_fits() -> None:
    graph, topology = random_dag(vertices=20, depth=4, bytes_per_flop=1.0, seed=0), preset("cpu2")
    start = np.where(graph.is_input, -1, 0)
    result = search(Problem(graph, topology), [start], SearchConfig(evaluations=50, chains=1))
    assert result.cost_s == float("inf")


def test_search_stops_where_the_cost_is_low_enough() -> None:
    graph, topology = random_dag(vertices=30, depth=5, seed=0), preset("p100x4")
    starts = starting_points(Problem(graph, topology), 0)
    first = Simulator(topology).makespans(graph, np.array(starts)).min()
    config = SearchConfig(seconds=1000, chains=1, enough_s=float(first))
    assert search(Problem(graph, topology), starts, config).evaluations == len(starts)
    config = SearchConfig(seconds=1000, chains=1, enough_s=float(first) * 0.99)
    assert search(Problem(graph, topology), starts, config).cost_s <= first * 0.99


def full_devices() -> Problem:
    """Eight results of 6 bytes, 13 bytes a device: two on each, of 65,536 assignments 2,520."""
    g = GraphBuilder("results")
    for i in range(8):
        g.op(f"v{i}", "matmul", reads=[], output_bytes=6, exec_s=1, transfer_s=1)
    devices = tuple(Device(f"d{i}", memory_bytes=13) for i in range(4))
    reference = preset("reference:4")
    return Problem(g.build(), Topology("small", devices, reference.links, reference.route))


def test_search_finds_its_way_to_what_fits() -> None:
    result = search(full_devices(), [np.zeros(8, int)], SearchConfig(evaluations=400))
    assert result.cost_s == 2.0


def test_a_chain_passes_through_what_lacks_memory_and_keeps_what_runs() -> None:
    """Hot enough to take almost any move of eight results that fill four devices."""
    from doppler.placers.search.kernel import improve
    from doppler.placers.search.moves_kernel import PRICE, SECONDS, SHARE
    from doppler.sim.memory_kernel import priced_s
    from doppler.sim.state_kernel import make_scratch

    problem = full_devices()
    simulator = Simulator(problem)
    arrays, priority = simulator.arrays(problem.graph), simulator.priority(problem.graph)
    scratch, neighbourhood = make_scratch(arrays), make_neighbourhood(problem)
    judge = make_judge(arrays, blank_model(), candidates=0)
    chain = make_chain(arrays, priority, scratch, np.arange(8) % 4)
    lent = list[bool]()
    for seed in range(300):
        price = chain.lent[PRICE]
        improve(*(arrays, neighbourhood, chain, judge, priority, scratch), seed, 1, 5.0, 5.0, -1.0)
        (makespan,) = simulator.makespans(problem.graph, chain.devices)
        (share,) = simulator.lent_shares(problem.graph, chain.devices)
        assert chain.lent[SHARE] == share
        assert chain.cost[0] == priced_s(*chain.lent[[SECONDS, SHARE, PRICE]])
        if share:
            assert chain.lent[PRICE] in (price, price * PRICING[1])  # the same if nothing moved
        else:
            assert makespan == chain.lent[SECONDS]
            assert chain.lent[PRICE] in (price, max(price / PRICING[1], PRICING[0]))
        assert simulator.makespans(problem.graph, chain.best)[0] == chain.cost[1] == 2.0
        lent.append(bool(share))
    assert 30 < sum(lent) < 270


@pytest.mark.parametrize("seed", range(12))
def test_what_search_finds_runs_if_anything_it_began_from_does(seed: int) -> None:
    problem, _ = tight_problem(seed)
    rng, graph = np.random.default_rng(seed), problem.graph
    table = rng.integers(problem.topology.num_devices, size=(6, graph.num_vertices))
    starts = np.where(graph.is_input, -1, table)
    before = Simulator(problem).makespans(graph, starts)
    result = search(problem, list(starts), SearchConfig(evaluations=500, chains=2))
    (made_s,) = Simulator(problem).makespans(graph, result.devices[None])
    assert made_s == result.cost_s <= before.min()


def test_a_pause_of_one_heuristic_makes_none_seem_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(search_module, "monotonic", lambda: now[0])
    clock = InstantClock(10.0)
    assert clock.expected_s("heft") == clock.expected_s("fewer-devices") == 0.0
    took_s = {"single": 0.01, "peft": 0.02, "heft": 5.0, "cpop": 0.03, "enumerative": 3.0}
    for name, seconds in took_s.items():
        with clock.timing(name):
            now[0] += seconds
    assert clock.expected_s("etf") == pytest.approx(0.03)
    assert clock.expected_s("fewer-devices") == pytest.approx(SLOWER["fewer-devices"] * 0.025)
    assert clock.has_time("fewer-devices")
    now[0] = 9.75
    assert not clock.has_time("fewer-devices")
    assert clock.has_time("etf")
