"""The rivals: each finds a known optimum, goes on bit for bit, and says what it is."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from strategies import examples
from training.tiny import CONFIG, LABEL, assert_same, graph, resumed, rows, trained

from doppler.errors import CheckpointError, ConfigError, UnknownNameError
from doppler.graph import Graph, GraphBuilder
from doppler.mdp.episode import Episode
from doppler.placers import make_placer
from doppler.placers.learned.rivals import LearnedPlacer
from doppler.policies.configs import AnyConfig, for_devices
from doppler.policies.rivals.base import RivalPolicy
from doppler.policies.rivals.rival_pass import early_devices
from doppler.problem import Problem
from doppler.sim import Simulator, simulate
from doppler.testing import PlacerContract
from doppler.topology import Topology
from doppler.training.api import train
from doppler.training.config import TrainConfig
from doppler.training.config_io import config_from, config_to
from doppler.training.exercise import Exercise
from doppler.training.presets import POLICIES, preset
from doppler.training.reinforce import imitate
from doppler.training.trainer import Trainer

RIVALS = ("placeto", "placeto-pretrain", "gdp", "seq2seq")
KINDS = ("placeto", "gdp", "seq2seq")
TWO = Topology.preset("reference:2")


def quick(name: str, *, preset_name: str = "default", **shape: Any) -> TrainConfig:
    """Three updates in each stage, by a narrow policy."""
    config = preset(preset_name, name)
    narrow: dict[str, Any] = {"width": 4} | shape
    batch = config.sim.batch if preset_name == "paper" else 4
    return replace(
        config,
        policy=replace(config.policy, **narrow),
        imitation=replace(config.imitation, episodes=3 * batch, batch=batch),
        sim=replace(config.sim, episodes=3 * batch, batch=batch),
        threads=1,
    )


def two_chains(*, slower: float = 1.0) -> Graph:
    """Two chains of three, each slower by a factor on the other's device; transfers take 3 s."""
    g = GraphBuilder("two chains")
    for chain, seconds in enumerate(((4, 3, 5), (2, 6, 4))):
        reads = []
        for i, s in enumerate(seconds):
            exec_s = [s * slower, s] if chain else [s, s * slower]
            name = f"v{chain}{i}"
            made = g.op(name, "matmul", reads=reads, output_bytes=1, exec_s=exec_s, transfer_s=3)
            reads = [made]
    return g.build()


def optimum(g: Graph, topology: Topology) -> float:
    """The least makespan of all assignments."""
    ways = np.array(list(product(range(topology.num_devices), repeat=g.num_vertices)))
    return float(Simulator(topology).makespans(g, ways).min())


# The shape, episodes, and the graph. GDP's vertices choose independently of each other; on equal
# devices that ends, for most seeds, where no vertex alone can improve: 15 s instead of 12.
LEARNS: dict[str, tuple[dict[str, Any], int, Graph]] = {
    "placeto": ({"rounds": 3}, 1200, two_chains()),
    "placeto improve": ({"rounds": 3, "form": "improve"}, 1200, two_chains()),
    "placeto-pretrain": ({"rounds": 3}, 800, two_chains()),
    "gdp": ({"width": 32}, 2000, two_chains(slower=4.0)),
    "seq2seq": ({"width": 32}, 2000, two_chains()),
}


@pytest.mark.parametrize("seed", range(examples(3)))
@pytest.mark.parametrize("case", LEARNS)
def test_each_learns_the_optimum_of_a_small_graph(case: str, seed: int) -> None:
    shape, episodes, g = LEARNS[case]
    config = preset("default", case.split()[0])
    config = replace(
        config,
        policy=replace(config.policy, **shape),
        imitation=replace(config.imitation, episodes=160),
        sim=replace(config.sim, batch=16, episodes=episodes),
        seed=seed,
        threads=1,
    )
    trainer = Trainer([(g, TWO)], config)
    means = [progress.mean_s for progress in trainer.run()]
    best = optimum(g, TWO)
    assert isinstance(trainer.policy, RivalPolicy)
    greedy = LearnedPlacer(trainer.policy, samples=0).place(Problem(g, TWO))
    assert simulate(g, TWO, greedy).makespan_s == best
    assert np.mean(means[-5:]) < best + 0.5 * (np.mean(means[:5]) - best)  # not by luck


@pytest.mark.parametrize(
    "config",
    [
        *(quick(name) for name in RIVALS),
        quick("placeto", form="improve"),
        quick("seq2seq", groups=5),
        quick("gdp", preset_name="paper", segment=5),
        replace(quick("gdp"), variants=1),
    ],
    ids=[*RIVALS, "improve", "groups", "paper", "variants"],
)
def test_stopped_anywhere_it_ends_the_same(tmp_path: Path, config: TrainConfig) -> None:
    straight = trained(tmp_path / "straight", config)
    for updates in (1, 2):
        stopped = trained(tmp_path / f"stopped{updates}", config, updates=updates)
        assert len(rows(stopped)) == updates
        assert_same(resumed(stopped), straight)


def test_a_rival_plays_other_episodes_with_another_seed(tmp_path: Path) -> None:
    runs = [trained(tmp_path / str(s), replace(quick("gdp"), seed=s)) for s in (0, 1)]
    assert rows(runs[0]) != rows(runs[1])


@pytest.mark.parametrize("name", RIVALS)
def test_presets_are_those_of_the_paper(name: str) -> None:
    config = preset("paper", name)
    placeto = name.startswith("placeto")
    assert config.sim.lr == ((1e-3, 1e-6) if placeto else (1e-4, 1e-7))
    assert config.sim.epsilon == (0.5 if placeto else 0.2, 0.0)
    assert config.sim.entropy == 1e-2
    assert config.sim.running_mean
    assert ("imitation" in config.stages) == (name == "placeto-pretrain")
    assert config_from(config_to(config), preset("default"), source="x") == config


def test_the_learning_rate_is_the_one_that_the_config_says() -> None:
    trainer = Trainer([(graph(), Topology.preset("p100x4"))], quick("gdp"))
    for progress in trainer.run():
        assert [group["lr"] for group in trainer.optimizer.param_groups] == [progress.lr]
    assert progress.lr < trainer.config.sim.lr[0]


def test_names_of_policies_and_presets() -> None:
    with pytest.raises(UnknownNameError, match="no policy named `placto`"):
        preset("default", "placto")
    with pytest.raises(UnknownNameError, match="no training preset named `fast`"):
        preset("fast", "gdp")
    assert set(POLICIES) == {"doppler", *RIVALS}


def test_the_teacher_says_where_a_vertex_could_start_first() -> None:
    config = quick("placeto")
    trainer = Trainer([(graph(), Topology.preset("p100x4"))], config)
    (record,) = trainer.records
    policy: Any = trainer.policy
    view = record.view(policy)
    devices = np.random.default_rng(0).integers(4, size=(3, len(view.order)))
    early = early_devices(view, devices)
    assert early.any(axis=2).all()
    from doppler.mdp.features import DEVICE_FEATURES

    column = DEVICE_FEATURES.index("extra_start")
    for row, right in zip(devices, early, strict=True):
        episode = Episode(record.exercise.instance)
        for step, vertex in enumerate(view.order.tolist()):
            seen = episode.device_features(vertex)[:, column]
            assert ((seen <= 0) == right[step]).all()
            episode.place(vertex, int(row[vertex]))


@pytest.mark.parametrize("name", KINDS)
def test_imitation_comes_closer_to_its_teacher(name: str) -> None:
    config = replace(quick(name, width=16), stages=("imitation",))
    config = replace(config, imitation=replace(config.imitation, episodes=160, lr=(1e-2, 1e-2)))
    trainer = Trainer([(graph(), Topology.preset("p100x4"))], config)
    (record,) = trainer.records
    policy: Any = trainer.policy
    before = imitate(policy, record, config, 0.0, 999)[0].item()
    for _ in trainer.run():
        pass
    assert imitate(policy, record, config, 0.0, 999)[0].item() < 0.9 * before


def test_placeto_counts_every_improvement() -> None:
    """The best of all assignments on the way is kept, not only of those at the end."""
    config = quick("placeto", form="improve")
    trainer = Trainer([(two_chains(), TWO)], config)
    progress = list(trainer.run())
    single_s = float(np.sum([4, 3, 5, 2, 6, 4]))
    assert trainer.records[0].best_s <= min(single_s, *(p.least_s for p in progress))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sim": replace(CONFIG.sim)}, "has no `sim.expert`"),
        ({"sim": replace(CONFIG.sim, expert=None, messages="step")}, "has no `sim.expert`"),
        ({"stages": ("real",), "real": CONFIG.real}, "takes no lessons"),
    ],
)
def test_what_only_the_dual_policy_can_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        replace(quick("gdp"), **change)
    assert "preset" in str(caught.value.hint)


def test_another_number_of_devices_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", quick("gdp"))
    eight = Topology.preset("v100x8")
    with pytest.raises(ConfigError, match="outputs for 4 devices, topology `v100x8` has 8"):
        make_placer(f"gdp:{run}").place(Problem(graph(), eight))
    with pytest.raises(ConfigError, match="outputs for 4 devices"):
        train(graph(), eight, quick("gdp"), start=run)
    with pytest.raises(ConfigError, match="outputs for 4 devices"):
        train(graph(), [Topology.preset("p100x4"), eight], quick("gdp"))
    assert for_devices(preset("default").policy, 8) == preset("default").policy


@pytest.mark.parametrize("name", KINDS)
def test_a_run_goes_on_elsewhere_and_places(tmp_path: Path, name: str) -> None:
    run = trained(tmp_path / "run", quick(name))
    best = json.loads((run / f"best/{LABEL}.assignment.json").read_text())
    assert best["placer"] == name
    placer = train(graph(1), Topology.preset("p100x4"), quick(name), start=run)
    assert isinstance(placer, LearnedPlacer)
    again = train(graph(1), Topology.preset("p100x4"), quick(name), start=placer)
    assert again.name == name
    expected = make_placer(f"{name}:{run}").place(Problem(graph(), Topology.preset("p100x4")))
    assert expected.placer == name
    assert (
        make_placer(f"{name}:{run}").place(Problem(graph(), Topology.preset("p100x4"))) == expected
    )
    other = "gdp" if name != "gdp" else "placeto"
    with pytest.raises(CheckpointError, match=f"of kind `{name}`, not `{other}`"):
        make_placer(f"{other}:{run}")
    with pytest.raises(CheckpointError, match=f"of kind `{name}`, not `doppler`"):
        make_placer(f"doppler:{run}")


class _Fresh:
    """A placer by policies that have learned nothing, one for every number of devices."""

    def __init__(self, config: AnyConfig) -> None:
        self.config, self.name = config, config.kind

    def place(self, problem: Problem, *, seed: int = 0, budget_s: float | None = None) -> Any:
        from doppler.policies.kinds import make_any

        policy: Any = make_any(for_devices(self.config, problem.topology.num_devices), 0)
        return LearnedPlacer(policy, samples=4).place(problem, seed=seed)


class TestPlaceto(PlacerContract):
    def placer(self) -> Any:
        return _Fresh(quick("placeto", rounds=2).policy)


class TestGdp(PlacerContract):
    def placer(self) -> Any:
        return _Fresh(quick("gdp", segment=16).policy)


class TestSeq2Seq(PlacerContract):
    def placer(self) -> Any:
        return _Fresh(quick("seq2seq", groups=16).policy)


def test_real_runs_teach_a_rival(tmp_path: Path) -> None:
    config = quick("gdp")
    real = replace(config.real, episodes=12, batch=4, samples=4, plain=4)
    config = replace(config, stages=("sim", "real"), real=real)
    p100 = Topology.preset("p100x4")
    trainer = Trainer([(graph(), p100)], config, executor=Simulator(p100))
    stages = [progress.stage for progress in trainer.run()]
    assert stages == ["sim"] * 3 + ["real"] * 3
    measured = trainer.records[0].measured()
    assert measured is not None
    assert measured.runs > 0


def test_exercises_know_no_expert_for_a_rival() -> None:
    exercise = Exercise(graph(), Topology.preset("p100x4"), quick("gdp"))
    assert exercise.expert is None
