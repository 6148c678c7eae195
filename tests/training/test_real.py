"""Stage III: what is measured teaches, and a safe incumbent whatever happens."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from training.machines import MACHINE, REAL, Flaky, limping, machine, small, trials_of  # noqa: E402
from training.tiny import CONFIG, graph, resumed, rows, take, trained  # noqa: E402

from doppler.assignment import Assignment, read_assignment  # noqa: E402
from doppler.engine.engine import Engine  # noqa: E402
from doppler.errors import (  # noqa: E402
    ConfigError,
    EngineError,
    GraphError,
    OutOfMemoryError,
)
from doppler.graph import Graph  # noqa: E402
from doppler.placers.search.annealing import AnnealingPlacer, SearchConfig  # noqa: E402
from doppler.policies.configs import for_devices  # noqa: E402
from doppler.policies.dual import make_policy  # noqa: E402
from doppler.policies.kinds import make_any  # noqa: E402
from doppler.problem import Problem  # noqa: E402
from doppler.runs.run import resume_run, start_run  # noqa: E402
from doppler.sim import Simulator  # noqa: E402
from doppler.topology import Topology  # noqa: E402
from doppler.topology.presets import read_topology  # noqa: E402
from doppler.trace import Trace, read_trace  # noqa: E402
from doppler.training.api import make_manifest, resume, train  # noqa: E402
from doppler.training.config import TrainConfig  # noqa: E402
from doppler.training.real import gains, pick  # noqa: E402
from doppler.training.trainer import RealProgress, Trainer  # noqa: E402


def run_of(work: Graph, config: TrainConfig, path: Path, parent: Path | None = None) -> Path:
    executor = machine()
    train(work, MACHINE, config, out=path, start=parent, executor=executor)
    return path


def test_it_gets_faster_on_a_machine_unlike_its_topology(tmp_path: Path) -> None:
    work, truth = small(), Simulator(limping())
    before = replace(CONFIG, imitation=replace(CONFIG.imitation, episodes=4))
    parent = tmp_path / "parent"
    train(work, MACHINE, before, out=parent)
    config = replace(REAL, seed=1, real=replace(REAL.real, episodes=64, moves=2000))
    run = run_of(work, config, tmp_path / "run", parent)
    label = f"{work.name}@p100x4"
    first, best = (read_assignment(p / f"best/{label}.assignment.json") for p in (parent, run))
    assert truth.run(work, best).makespan_s < 0.95 * truth.run(work, first).makespan_s
    last = rows(run)[-1]
    assert last["stage"] == "real"
    assert last["replaced"] >= 1
    assert last["failures"] == 0
    assert last["speedup"] > 1.04
    assert last["sim_error"] < 0.02 < 0.05 < rows(run)[0]["sim_error"]
    assert last["runs"] >= 40
    assert 0 < last["spread_s"] < 0.1 * last["best_s"]
    assert last["best_s"] == pytest.approx(truth.run(work, best).makespan_s, rel=0.05)
    trace = read_trace(run / f"best/{label}.trace.json")
    assert trace.makespan_s == pytest.approx(last["best_s"], rel=0.1)
    seen = read_topology(run / f"best/{label}.topology.json")
    assert Simulator(seen).run(work, best).makespan_s == pytest.approx(last["best_s"], rel=0.1)
    assert_recalibrated(work, seen)


def assert_recalibrated(work: Graph, seen: Topology) -> None:
    """A simulator that was wrong on purpose now predicts assignments that were never run."""
    rng = np.random.default_rng(0)
    others = np.where(work.is_input, -1, rng.integers(4, size=(20, work.num_vertices)))
    true_s, wrong_s, seen_s = (
        Simulator(topology).makespans(work, others) for topology in (limping(), MACHINE, seen)
    )
    assert np.abs(wrong_s / true_s - 1).mean() > 0.25
    assert np.abs(seen_s / true_s - 1).max() < 0.02
    true, found = (Problem(work, topology).costs for topology in (limping(), seen))
    share = found.exec_s[work.assigned].sum(axis=0) / true.exec_s[work.assigned].sum(axis=0)
    assert share == pytest.approx(np.ones(4), rel=0.05)  # the first of them is half as fast
    used = MACHINE.route[MACHINE.route >= 0]
    assert found.s_per_byte[used] == pytest.approx(true.s_per_byte[used], rel=0.05)


@pytest.mark.parametrize("work", [graph(), small()], ids=["without kernels", "with kernels"])
def test_stopped_anywhere_it_ends_the_same(tmp_path: Path, work: Graph) -> None:
    """With a noisy machine in virtual time; the seeds of its runs are counted on."""
    parent = tmp_path / "parent"
    train(work, MACHINE, CONFIG, out=parent)
    straight = run_of(work, REAL, tmp_path / "straight", parent)
    assert len(rows(straight)) == 5
    for updates in (0, 1, 3):
        path = tmp_path / f"stopped{updates}"
        placer_run = start_real(work, path, parent)
        with placer_run as run:
            if updates:
                take(run, updates)
        assert len(rows(path)) == updates
        resume(path, executor=machine())
        assert rows(path) == rows(straight)
        label = f"{work.name}@p100x4"
        for kind in ("assignment", "trace", "topology"):
            name = f"best/{label}.{kind}.json"
            assert (path / name).read_bytes() == (straight / name).read_bytes()
        assert rows(path)[-1]["policy_s"] > 0
        assert all(row["policy_s"] is row["start_s"] is None for row in rows(path)[:-1])
        mine, theirs = (load(p / "state.safetensors") for p in (path, straight))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def load(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(path)


def start_real(work: Graph, path: Path, parent: Path) -> Any:
    from doppler.training.api import starting_assignments, starting_policy

    policy = starting_policy(parent)
    manifest = make_manifest([work], [MACHINE], REAL, policy=policy, executor=machine())
    return start_run(
        manifest,
        path,
        policy=policy,
        starts=starting_assignments(parent),
        make_executor=lambda _: machine(),
    )


def test_it_begins_with_the_best_of_the_run_it_goes_on_from(tmp_path: Path) -> None:
    parent = trained(tmp_path / "parent")
    best = read_assignment(next((parent / "best").glob("*.assignment.json")))
    executor = Flaky(machine(), lambda *_: None)
    train(graph(), MACHINE, REAL, start=parent, executor=executor)
    assert executor.ran[0] == best.devices.tobytes()
    other = Flaky(machine(), lambda *_: None)  # on another graph there is none
    train(graph(1), MACHINE, REAL, start=parent, executor=other)
    assert other.ran[0] != best.devices.tobytes()


def test_all_three_stages_in_one_run(tmp_path: Path) -> None:
    config = replace(REAL, stages=("imitation", "sim", "real"), variants=1)
    run = run_of(graph(), config, tmp_path / "run")
    stages = [row["stage"] for row in rows(run)]
    assert stages == ["imitation"] * 3 + ["sim"] * 3 + ["real"] * 5
    assert {row["exercise"] for row in rows(run)[6:]} == {"random-dag-12@p100x4"}


@pytest.mark.parametrize("config", [REAL, replace(REAL, stages=("imitation", "sim", "real"))])
def test_seconds_go_to_the_last_stage(config: TrainConfig) -> None:
    ticks = count()
    trainer = Trainer(
        [(graph(), MACHINE)],
        replace(config, seconds=0.6),
        policy=make_policy(config.policy, 0),
        executor=machine(),
        clock=lambda: 0.1 * next(ticks),
    )
    seen = list(trainer.run())
    assert seen[-1].stage == "real"
    assert isinstance(seen[-1], RealProgress)
    assert seen[-1].share == 1.0


def test_what_fails_is_a_bad_reward_and_no_more() -> None:
    """Assignments that use the last device fail, at any stage of their measurement."""

    def refuse(devices: np.ndarray, number: int) -> Exception | None:
        if (devices == 3).any():
            return (EngineError, OutOfMemoryError)[number % 2]("no such luck")
        return None

    work = graph()
    trainer = Trainer(
        [(work, MACHINE)],
        replace(REAL, real=replace(REAL.real, episodes=40)),
        policy=make_policy(REAL.policy, 0),
        executor=Flaky(machine(), refuse),
    )
    seen = [progress for progress in trainer.run() if isinstance(progress, RealProgress)]
    assert len(seen) == 10
    assert seen[-1].failures > 3
    assert np.isfinite([progress.mean_s for progress in seen]).all()
    assert max(p.mean_s for p in seen) > 1.2 * seen[-1].best_s  # failures weigh
    assert not (trainer.records[0].best_devices == 3).any()


def test_noise_alone_seldom_replaces_the_incumbent() -> None:
    """Every assignment takes the same time, but for noise of 5 %."""

    class Dice:
        def __init__(self) -> None:
            self.inner = Simulator(MACHINE)
            self.rng = np.random.default_rng(0)

        def run(self, graph: Graph, assignment: Assignment, seed: int = 0) -> Trace:
            trace = self.inner.run(graph, Assignment(np.where(graph.is_input, -1, 0)))
            return replace(trace, end_s=trace.end_s * self.rng.normal(1.0, 0.05))

    config = replace(REAL, real=replace(REAL.real, episodes=160, max_runs=8))
    policy = make_policy(config.policy, 0)
    trainer = Trainer([(graph(), MACHINE)], config, policy=policy, executor=Dice())
    last = list(trainer.run())[-1]
    assert isinstance(last, RealProgress)
    assert last.replaced <= 3  # of 40


class Jitter:
    """An executor some of whose runs take half as long again, as where others use the machine."""

    def __init__(self, seed: int) -> None:
        self.inner, self.rng = Simulator(MACHINE), np.random.default_rng(seed)

    def run(self, graph: Graph, assignment: Assignment, seed: int = 0) -> Trace:
        trace = self.inner.run(graph, assignment)
        factor = (1 + 0.05 * self.rng.standard_normal()) * (1.5 if self.rng.random() < 0.4 else 1)
        times = {name: getattr(trace, name) * factor for name in ("ready_s", "begin_s", "end_s")}
        return replace(trace, **times)


def test_it_never_ends_worse_than_its_start() -> None:
    """Where two in five runs are half as slow again, with a final race against the start or not."""
    work, truth = graph(), Simulator(MACHINE)
    start = AnnealingPlacer(SearchConfig(evaluations=20_000)).place(Problem(work, MACHINE), seed=0)
    real = replace(REAL.real, episodes=200, max_runs=8)
    best_s, seed = [], 3
    for final_runs in (0, 10):
        config = replace(REAL, seed=seed, real=replace(real, final_runs=final_runs))
        policy = make_policy(config.policy, 0)
        trainer = Trainer(
            [(work, MACHINE)], config, policy=policy, executor=Jitter(seed), starts=[start]
        )
        last = list(trainer.run())[-1]
        best_s.append(truth.run(work, trainer.records[0].best()).makespan_s)
    start_s = truth.run(work, start).makespan_s
    assert best_s == [start_s, start_s]
    assert isinstance(last, RealProgress)
    assert last.best_s == last.start_s
    assert last.speedup == 1.0


def test_executions_until_the_best_was_first_run() -> None:
    work, config = graph(), replace(REAL, real=replace(REAL.real, episodes=40, final_runs=0))
    executor = Flaky(machine(), lambda *_: None)
    policy = make_policy(config.policy, 0)
    trainer = Trainer([(work, MACHINE)], config, policy=policy, executor=executor)
    last = list(trainer.run())[-1]
    assert isinstance(last, RealProgress)
    assert last.executions == len(executor.ran) > last.runs
    best = trainer.records[0].best_devices.tobytes()
    assert last.best_after == 1 + executor.ran.index(best)


def test_gains_are_against_the_others_and_less_in_noise() -> None:
    trials = trials_of(graph(), machine())
    makespans = np.array([1.0, 2.0, 3.0, 6.0])
    trials.incumbent.recent_s.extend([3.0, 3.0])
    found = gains(trials, makespans, 1.0)
    others = (makespans.sum() - makespans) / 3
    assert found == pytest.approx((others - makespans) / makespans.std(ddof=1))
    trials.incumbent.recent_s.extend([1.0, 5.0])
    noisy = gains(trials, makespans, 1.0)
    assert np.abs(noisy).sum() < np.abs(found).sum()
    trials.incumbent.recent_s.extend([0.1, 9.0])
    assert (gains(trials, makespans, 1.0) == 0).all()
    assert trials.mean_s == pytest.approx(3.0)
    paper = trials_of(graph(), machine(), replace(REAL.real, running_mean=True))
    assert gains(paper, makespans, 2.0)[0] == 1.0
    assert gains(paper, np.array([5.0]), 2.0) == pytest.approx([-1.0])


def test_picked_are_the_best_that_differ_and_did_not_run_yet() -> None:
    work = graph()
    trials = trials_of(work, machine())
    rng = np.random.default_rng(0)
    rows = np.where(work.is_input, -1, rng.integers(4, size=(6, work.num_vertices)))
    renamed = np.where(rows[:1] < 0, -1, (rows[:1] + 1) % 4)  # the same but for names
    devices = np.concatenate([rows, renamed, rows[:1]])
    costs = trials.predictor.costs_s(devices)
    stage = replace(REAL.real, batch=4, plain=1, samples=8)
    order = [int(i) for i in np.argsort(costs[:6], kind="stable")]
    picked = pick(trials, devices, stage).tolist()
    assert picked[:3] == order[:3]
    assert picked[3] == min({*range(8)} - {*picked[:3]})
    trials.measure(devices[order[:1]])
    assert pick(trials, devices, stage).tolist()[:3] == order[1:4]


def test_the_engine_is_made_where_no_executor_is_given(tmp_path: Path) -> None:
    work = small()
    config = replace(REAL, real=replace(REAL.real, backend="null", episodes=8))
    policy = train(work, MACHINE, replace(CONFIG, stages=("imitation",)))
    train(work, MACHINE, config, out=tmp_path / "run", start=policy)
    assert rows(tmp_path / "run")[-1]["runs"] > 8
    resume(tmp_path / "run")
    with Engine(MACHINE, "null") as engine:
        train(graph(), MACHINE, config, start=policy, executor=engine)


@pytest.mark.parametrize("kind", ["doppler", "gdp", "placeto"])
def test_in_the_paper_preset_an_episode_is_one_run(kind: str) -> None:
    from doppler.training.presets import preset

    config = replace(preset("paper", kind), stages=("real",), threads=1)
    config = replace(config, real=replace(config.real, episodes=7))
    executor = Flaky(machine(), lambda _, n: EngineError("x") if n in (1, 4) else None)
    trainer = Trainer(
        [(graph(), MACHINE)],
        config,
        policy=make_any(for_devices(config.policy, 4), 0),
        executor=executor,
        starts=[Assignment(np.where(graph().is_input, -1, 0))],
    )
    seen = list(trainer.run())
    assert [progress.episodes for progress in seen] == list(range(1, 8))
    assert all(isinstance(progress, RealProgress) for progress in seen)
    last = seen[-1]
    assert isinstance(last, RealProgress)
    assert len(executor.ran) == last.runs == last.executions == 7
    assert (last.failures, last.policy_s, last.start_s, last.sim_error) == (2, None, None, None)
    assert np.isfinite([progress.mean_s for progress in seen]).all()
    best = trainer.records[0].best_devices.tobytes()
    assert last.best_after == 1 + executor.ran.index(best)
    assert last.best_s == min(p.least_s for i, p in enumerate(seen) if i not in (0, 3))
    assert trainer.records[0].recalibrated() is None


def test_the_paper_preset_on_disk(tmp_path: Path) -> None:
    from doppler.training.presets import preset

    work = small()
    config = replace(preset("paper"), stages=("real",), threads=1)
    config = replace(config, real=replace(config.real, episodes=6, backend="null"))
    start = train(work, MACHINE, replace(CONFIG, stages=("imitation",)))
    train(work, MACHINE, config, out=tmp_path / "run", start=start)
    assert (len(rows(tmp_path / "run")), rows(tmp_path / "run")[-1]["executions"]) == (6, 6)
    kinds = {path.name.split(".")[-2] for path in (tmp_path / "run/best").iterdir()}
    assert kinds == {"assignment"}  # only makespans were measured
    resume(tmp_path / "run", episodes=2)
    assert rows(tmp_path / "run")[-1]["executions"] == 8


def test_the_paper_preset_with_a_final_race() -> None:
    from doppler.training.presets import preset

    work = graph()
    good = AnnealingPlacer(SearchConfig(evaluations=20_000)).place(Problem(work, MACHINE), seed=0)
    config = replace(preset("paper"), stages=("real",), policy=CONFIG.policy, threads=1)
    config = replace(config, real=replace(config.real, episodes=5, final_runs=4))
    executor = Flaky(Simulator(MACHINE), lambda *_: None)
    policy = make_policy(config.policy, 0)
    trainer = Trainer([(work, MACHINE)], config, policy=policy, executor=executor, starts=[good])
    last = list(trainer.run())[-1]
    assert isinstance(last, RealProgress)
    assert (last.runs - 5) % 4 == (len(executor.ran) - 5) % 5 == 0
    assert np.array_equal(trainer.records[0].best_devices, good.devices)
    assert last.policy_s >= last.start_s == last.best_s


def test_the_paper_preset() -> None:
    from doppler.training.presets import preset

    config = replace(preset("paper"), stages=("real",), policy=CONFIG.policy, threads=1)
    config = replace(config, real=replace(config.real, episodes=4))
    policy = make_policy(config.policy, 0)
    trainer = Trainer([(graph(), MACHINE)], config, policy=policy, executor=machine())
    assert [progress.episodes for progress in trainer.run()] == [1, 2, 3, 4]


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="begins with a policy") as caught:
        train(graph(), MACHINE, REAL, executor=machine(), out=tmp_path / "run")
    assert "--from" in (caught.value.hint or "")
    with pytest.raises(ConfigError, match="needs an executor"):
        Trainer([(graph(), MACHINE)], REAL)
    start = train(graph(), MACHINE, CONFIG)
    with pytest.raises(ConfigError, match="on one machine, not on 2"):
        train(graph(), [MACHINE, MACHINE], REAL, start=start, executor=machine())
    with pytest.raises(GraphError):  # it says nothing of what to execute
        train(graph(), MACHINE, REAL, start=start, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    for changes, message in (
        ({"batch": 9}, "batch at most samples"),
        ({"plain": 5}, "plain must be at most batch"),
        ({"moves": -1}, "real.moves is -1"),
        ({"repeats": 0}, "real.repeats is 0"),
        ({"final_runs": 1}, "real.final_runs is 1"),
        ({"guarded": False}, "episodes are all that runs"),
        ({"max_runs": 2}, "at least 3"),
        ({"confidence": 1.5}, "confidence is 1.5"),
        ({"timeout_s": 0.0}, "timeout_s is 0"),
        ({"temperature": (-1.0, 0.0)}, "real.temperature"),
        ({"epsilon": (2.0, 0.0)}, "real.epsilon"),
    ):
        with pytest.raises(ConfigError, match=message):
            replace(REAL.real, **changes)


def test_a_run_is_resumed_with_an_executor(tmp_path: Path) -> None:
    parent = trained(tmp_path / "parent")
    with start_real(graph(), tmp_path / "run", parent) as run:
        take(run, 1)
    with pytest.raises(ConfigError, match="needs an executor"):
        resume_run(tmp_path / "run")
    resumed(parent)
