"""The learned policy as a placer, alone and in the portfolio."""

import math
from contextlib import closing
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policies.arrays.making import array_policy, write_policy

from doppler import errors, programs
from doppler.graph import Graph
from doppler.mdp.instance import make_instance
from doppler.mdp.parts import nested_parts, on_part
from doppler.mdp.rollout import GREEDY
from doppler.placers import Placer, make_placer, placer_names, solve
from doppler.placers.auto import AutoPlacer
from doppler.placers.learned import doppler as doppler_placer
from doppler.placers.learned.batches import Batch, BatchKind
from doppler.placers.learned.config import NeighbourhoodConfig
from doppler.placers.learned.doppler import POLICY_FILE, DopplerPlacer
from doppler.placers.learned.sample_times import SampleTimes
from doppler.placers.lists.guides import listed_best
from doppler.placers.turns import PolicyTurns
from doppler.policies.arrays import checkpoint
from doppler.policies.arrays.checkpoint import read_provenance, shipped_bytes
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.arrays.policy import ArrayPolicy
from doppler.problem import Problem
from doppler.programs.random_dag import random_dag
from doppler.sharding import shard
from doppler.sim import Simulator
from doppler.testing import PlacerContract
from doppler.topology import read_topology

TOPOLOGY = read_topology("p100x4")
SHAPE = PolicyConfig(width=8, rounds=2)


def policy(seed: int = 0) -> ArrayPolicy:
    return array_policy(SHAPE, seed)


def graph(seed: int = 0) -> Graph:
    return random_dag(vertices=30, depth=6, bytes_per_flop=2e-6, seed=seed)


class TestContract(PlacerContract):
    def placer(self) -> Placer:
        short = NeighbourhoodConfig(polishing_work=100_000)
        return DopplerPlacer(policy(), samples=4, search=short)


def test_the_best_proposal_is_placed() -> None:
    placer = DopplerPlacer(policy(), samples=100)
    devices, order, makespans = placer.propose(make_instance(Problem(graph(), TOPOLOGY)), seed=3)
    assert devices.shape == order.shape == (6 + 100 + 1, 30)  # the last is polished
    placed = placer.place(Problem(graph(), TOPOLOGY), seed=3)
    trace = Simulator(TOPOLOGY).run(graph(), placed)
    assert trace.makespan_s == makespans.min() < makespans[0]
    assert placed.placer == "doppler"
    assert placed.order is not None


def test_any_number_of_cores_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    instance, found = make_instance(Problem(graph(), TOPOLOGY)), []
    for count in (1, 3):
        monkeypatch.setattr(doppler_placer, "cores", lambda count=count: list(range(count)))
        found.append(DopplerPlacer(policy(), samples=300).propose(instance, seed=2))
    for one, several in zip(*found, strict=True):
        np.testing.assert_array_equal(one, several)


def test_more_samples_are_never_worse() -> None:
    """Before they are polished."""
    unpolished = NeighbourhoodConfig(polishing_work=0)
    few, many = (
        DopplerPlacer(policy(), samples=count, search=unpolished)
        .propose(make_instance(Problem(graph(), TOPOLOGY)))[2]
        .min()
        for count in (64, 256)
    )
    assert many <= few


def test_without_place_the_critical_path_rule_places() -> None:
    """PLC's weights do not matter then; SEL's do not matter without `select`."""
    instance = make_instance(Problem(graph(), TOPOLOGY))
    by_rule = [
        DopplerPlacer(policy(seed), samples=0, select=False).propose(instance)[1] for seed in (0, 1)
    ]
    assert np.array_equal(*by_rule)
    longest_first = instance.tables.bottom_s[by_rule[0][0, 0]]
    entries = instance.tables.bottom_s[instance.tables.num_reads == 0]
    assert longest_first == entries.max()
    plc = policy(0)
    out = {"place.out.weight": -plc.tensors["place.out.weight"]}
    other = ArrayPolicy(SHAPE, {**plc.tensors, **out})
    devices = [DopplerPlacer(p, samples=0, place=False).propose(instance)[0] for p in (plc, other)]
    assert np.array_equal(*devices)
    assert not np.array_equal(
        *(DopplerPlacer(p, samples=0).propose(instance)[0] for p in (plc, other))
    )


def test_neither_policy_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="must select or place"):
        DopplerPlacer(policy(), select=False, place=False)


def test_a_run_and_a_checkpoint_can_be_named(tmp_path: Path) -> None:
    file = tmp_path / POLICY_FILE
    write_policy(policy(), file)
    expected = DopplerPlacer(policy()).place(Problem(graph(), TOPOLOGY))
    for path in (tmp_path, file):
        assert make_placer(f"doppler:{path}").place(Problem(graph(), TOPOLOGY)) == expected


def test_without_a_policy_the_one_of_the_package_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "files", lambda _: tmp_path)
    with pytest.raises(errors.CheckpointError, match="no policy comes with") as caught:
        DopplerPlacer()
    assert "dop train" in str(caught.value.hint)
    (tmp_path / "data").mkdir()
    write_policy(policy(), tmp_path / "data" / POLICY_FILE)
    expected = DopplerPlacer(policy()).place(Problem(graph(), TOPOLOGY))
    assert DopplerPlacer().place(Problem(graph(), TOPOLOGY)) == expected


def test_by_name_the_policy_of_the_package_is_an_option_not_a_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "files", lambda _: tmp_path)
    with pytest.raises(errors.CheckpointError, match="no policy comes with"):
        make_placer("doppler")
    assert "doppler" not in placer_names()
    without = make_placer("auto")
    assert isinstance(without, AutoPlacer)
    assert without.learned is None
    solution = AutoPlacer(evaluations=50, instant=("single",)).solve(Problem(graph(), TOPOLOGY))
    assert "doppler" not in [member.name for member in solution.members]
    assert not any(member.error for member in solution.members)

    (tmp_path / "data").mkdir()
    write_policy(policy(), tmp_path / "data" / POLICY_FILE)
    assert "doppler" in placer_names()
    expected = DopplerPlacer(policy()).place(Problem(graph(), TOPOLOGY))
    assert make_placer("doppler").place(Problem(graph(), TOPOLOGY)) == expected
    solution = AutoPlacer(evaluations=50, instant=("single",)).solve(Problem(graph(), TOPOLOGY))
    assert [member.name for member in solution.members][:2] == ["single", "doppler"]


@pytest.mark.parametrize(("own_s", "has_time"), [(None, True), (1.0, True), (1e-9, False)])
def test_the_portfolio_respects_how_long_a_policy_may_be_sampled(
    own_s: float | None, has_time: bool
) -> None:
    placer = DopplerPlacer(policy(), seconds=own_s)
    taker = PolicyTurns(placer, Problem(graph(), TOPOLOGY), 0, 0.1)
    with closing(taker):
        assert taker.has_time(10.0) == has_time
        assert not taker.has_time(0.01)  # a sample is estimated to take longer


def test_turns_of_the_policy_make_what_the_placer_makes() -> None:
    """But for polishing, since annealing has turns of its own."""
    problem = Problem(graph(), TOPOLOGY)
    placer = DopplerPlacer(policy(), samples=64, search=NeighbourhoodConfig(polishing_work=0))
    with closing(PolicyTurns(placer, problem, 3, 0.1)) as taker:
        taker.turn(1e9, 1e9)
        assert not taker.has_time(1e9)  # nothing is left to try
    assignment = placer.place(problem, seed=3)
    assert taker.devices.tolist() == assignment.devices.tolist()
    assert taker.order.tolist() == assignment.order.tolist()


def test_a_batch_that_would_outlast_its_time_is_cut() -> None:
    placer, problem = DopplerPlacer(policy()), Problem(graph(), TOPOLOGY)
    batch, times = Batch(BatchKind.INITIAL, GREEDY, SHAPE, 8), SampleTimes()
    times.note(BatchKind.INITIAL, 1.0)
    with closing(placer.begin(make_instance(problem), 0)) as search:
        counts = [times.count(batch, search.parts[0], seconds) for seconds in (0.1, 3.5, math.inf)]
    assert counts in ([1, 3, 8], [1, 4, 8])


def test_samples_take_as_long_as_those_before() -> None:
    times = SampleTimes()
    assert [times.sample_s(kind) for kind in BatchKind] == [0.0, 0.0, 0.0]
    times.note(BatchKind.GREEDY, 2.0)
    times.note(BatchKind.GREEDY, 0.5)  # on a part of the machine
    assert [times.sample_s(kind) for kind in BatchKind] == [2.0, 2.0, 2.0]
    for took_s in (0.3, 0.2):
        times.note(BatchKind.NEIGHBOUR, took_s)
    assert [times.sample_s(kind) for kind in BatchKind] == [2.0, 2.0, 0.2]


def test_policies_search_from_what_others_found() -> None:
    problem, placer = Problem(graph(), TOPOLOGY), DopplerPlacer(policy(), samples=64)
    better = AutoPlacer(evaluations=2000, instant=("heft",)).place(problem).devices
    with closing(placer.begin(make_instance(problem), 0)) as search:
        search.take(better[problem.graph.assigned], 0.0)  # nothing to add it to yet
        search.step()
        search.take(better[problem.graph.assigned], 0.0)
        elites = [elite for one in search._on_parts for elite in one.elites]
        while search.next is not None and not search._populations:
            search.step()
        first = search._populations[0].elites[0]
    assert np.array_equal(first.devices, better[problem.graph.assigned])
    assert any(np.array_equal(elite.devices, better[problem.graph.assigned]) for elite in elites)


def test_a_torch_policy_is_taken_as_it_is_now() -> None:
    torch = pytest.importorskip("torch")
    from doppler.policies.checkpoint import to_torch

    given = to_torch(policy())
    placer = DopplerPlacer(given, samples=4)
    assert placer.policy is given
    with torch.no_grad():
        given.place.out.weight.neg_()
    instance = make_instance(Problem(graph(), TOPOLOGY))
    expected = DopplerPlacer(policy(), samples=4).propose(instance)
    assert all(
        np.array_equal(a, b) for a, b in zip(placer.propose(instance), expected, strict=True)
    )
    changed = DopplerPlacer(given, samples=4).propose(instance)
    assert not np.array_equal(changed[0], expected[0])


def test_a_policy_of_arrays_can_be_trained_on() -> None:
    torch = pytest.importorskip("torch")
    placer = DopplerPlacer(policy())
    mine = placer.policy
    assert mine is placer.policy
    assert mine.config == SHAPE
    for name, tensor in mine.state_dict().items():
        assert torch.equal(tensor, torch.as_tensor(placer.arrays.tensors[name]))


def test_what_has_no_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.CheckpointError, match="does not exist"):
        make_placer(f"doppler:{tmp_path}")
    with pytest.raises(errors.ConfigError, match="takes no run"):
        make_placer("heft:runs/x")


def test_the_portfolio_includes_the_policy(tmp_path: Path) -> None:
    write_policy(policy(), tmp_path / POLICY_FILE)
    placer = AutoPlacer(evaluations=50, instant=("single",), learned=DopplerPlacer(policy()))
    solution = solve(placer, Problem(graph(), TOPOLOGY))
    found = {member.name: member.makespan_s for member in solution.members}
    assert set(found) == {"single", "doppler", "cp-sat", "annealing"} or set(found) == {
        "single",
        "doppler",
        "annealing",
    }
    assert found["annealing"] <= found["doppler"] < found["single"]
    by_name = make_placer(f"auto:{tmp_path}")
    assert isinstance(by_name, AutoPlacer)
    assert by_name.learned is not None


def test_parts_of_the_machine_are_tried_down_to_one_device() -> None:
    problem = Problem(graph(), TOPOLOGY)
    devices, _, _ = DopplerPlacer(policy(), samples=64).propose(make_instance(problem))
    greedy, listed = devices[:6:2], devices[1:6:2]  # on 4, 2 and 1 devices
    used = [len(np.unique(row)) for row in greedy]
    assert used[1] <= 2
    assert used[2] == 1
    for row, part in zip(listed, nested_parts(problem), strict=True):
        expected = part[listed_best(on_part(problem, part))[problem.graph.assigned]]
        assert row.tolist() == expected.tolist()


def test_without_samples_there_is_one_greedy_assignment() -> None:
    """And the list schedule, where the search begins from those."""
    instance = make_instance(Problem(graph(), TOPOLOGY))
    found = [
        DopplerPlacer(policy(), samples=0, search=NeighbourhoodConfig(list_starts=starts)).propose(
            instance
        )
        for starts in (True, False)
    ]
    assert [devices.shape for devices, _, _ in found] == [(2, 30), (1, 30)]
    assert [makespans.shape for _, _, makespans in found] == [(2,), (1,)]
    assert np.array_equal(found[0][0][:1], found[1][0])


def test_larger_problems_have_fewer_samples() -> None:
    few = NeighbourhoodConfig(max_pairs=4_000_000, max_samples=2048, polishing_work=0)
    placer = DopplerPlacer(policy(), search=few)
    counts = [
        len(
            placer.propose(
                make_instance(Problem(random_dag(vertices=n, depth=8, seed=0), TOPOLOGY))
            )[2]
        )
        for n in (30, 1000, 3000)
    ]
    search = placer.search
    pairs = [n * (4 + search.vertex_pairs) for n in (1000, 3000)]
    assert counts == [6 + search.max_samples, *(6 + search.max_pairs // count for count in pairs)]


@pytest.mark.parametrize("samples", [1, 40, 100, 5000])
def test_all_kinds_of_samples_in_all_populations(samples: int) -> None:
    """Populations have their turns in the first samples; then they are dropped, down to one."""
    placer, parts = DopplerPlacer(policy(), samples=samples), 5
    search = placer.search
    batches = list(placer._batches(make_instance(Problem(graph(), TOPOLOGY)), parts))
    greedy, sampled = batches[:parts], batches[parts:]
    assert [batch.part for batch in greedy] == list(range(parts))
    assert sum(batch.count for batch in sampled) == samples
    assert {batch.kind for batch in greedy} == {BatchKind.GREEDY}
    initial = [batch for batch in sampled if batch.kind is BatchKind.INITIAL]
    fewest = min(search.min_initial, int(search.max_initial_share * samples))
    expected = max(fewest, int(search.initial_share * samples))
    assert sum(batch.count for batch in initial) == expected
    if samples == 5000:
        count = min(samples // search.samples_per_population, search.max_populations)
        assert count == 4
        assert {batch.populations for batch in initial} == {count}
        for number in range(count):
            mine = [batch for batch in initial if batch.population % count == number]
            assert len(mine) >= len(initial) // count
            assert len({(b.policy.select, b.policy.place) for b in mine}) == 3
    assert all(batch.stays for batch in [*greedy, *initial])
    neighbours = [batch for batch in sampled if batch.kind is BatchKind.NEIGHBOUR]
    assert all(batch.keeps_order for batch in neighbours)
    left = [batch.populations for batch in neighbours]
    assert left == sorted(left, reverse=True)
    if samples == 5000:
        assert set(left) == {4, 2, 1}
        assert {batch.random_share for batch in neighbours} == set(search.random_shares)
        ways = {(batch.stays, batch.random_share) for batch in neighbours}
        assert len(ways) == 2 * len(search.random_shares)


def test_where_the_rule_places_neighbours_differ_in_their_order() -> None:
    placer = DopplerPlacer(policy(), samples=100, place=False)
    batches = list(placer._batches(make_instance(Problem(graph(), TOPOLOGY)), 3))
    neighbours = [batch for batch in batches if batch.kind is BatchKind.NEIGHBOUR]
    assert {(batch.keeps_order, batch.random_share) for batch in neighbours} == {(False, 0.0)}


def test_the_search_can_be_set() -> None:
    search = NeighbourhoodConfig(max_samples=70, max_islands=0, polishing_work=0)
    placer = DopplerPlacer(policy(), search=search)
    makespans = placer.propose(make_instance(Problem(graph(), TOPOLOGY)))[2]
    assert len(makespans) == 6 + 70


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"elites": 0}, "elites is 0, must be at least 1"),
        ({"max_destroyed": 1.5}, "max_destroyed is 1.5, must be between 0 and 1"),
        ({"used_probability": -0.5}, "used_probability is -0.5, must be between 0 and 1"),
        ({"random_shares": (0.5, -1.0)}, "random_shares is -1.0, must be between 0 and 1"),
        ({"temperatures": ()}, "must not be empty"),
        ({"cold": 0.0}, "cold must be positive"),
        ({"hot": 1e-6}, "at most hot"),
        ({"polishing_work": -1}, "polishing_work and candidates not negative"),
        ({"candidates": -1}, "polishing_work and candidates not negative"),
        ({"polishing_share": 2.0}, "polishing_share is 2.0, must be between 0 and 1"),
        ({"polished": 0}, "polished is 0, must be at least 1"),
        ({"min_group_work": 3.0}, "at most max_group_work"),
    ],
)
def test_settings_that_cannot_be(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.ConfigError, match=words):
        NeighbourhoodConfig(**setting)


def test_the_policy_that_comes_with_the_package() -> None:
    assert len(shipped_bytes()) <= 5_000_000
    with as_file(files("doppler").joinpath(*checkpoint.SHIPPED)) as path:
        recipe = read_provenance(path)["recipe"]
    assert recipe["split"] == "train"  # what is measured on the others is generalisation
    assert recipe["without"] == []
    lists = ("heft", "cpop", "peft", "etf", "m-sct", "min-min", "max-min")
    for program, machine in ((programs.chainmm(), "p100x4"), (programs.llama_block(), "v100x8")):
        topology = read_topology(machine)
        sharded = shard(program, topology.num_devices)
        placers = [make_placer(name) for name in ("doppler", *lists)]
        made = [placer.place(Problem(sharded, topology), seed=0) for placer in placers]
        makespans = Simulator(topology).makespans(sharded, made)
        assert makespans[0] < makespans[1:].min()
