"""Stage III: what is measured teaches, and a safe incumbent whatever happens."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from training.tiny import CONFIG, graph, resumed, rows, take, trained  # noqa: E402

from doppler.assignment import Assignment, read_assignment  # noqa: E402
from doppler.engine.engine import Engine  # noqa: E402
from doppler.errors import (  # noqa: E402
    ConfigError,
    EngineError,
    GraphError,
    OutOfMemoryError,
    TrainingError,
)
from doppler.graph import Graph  # noqa: E402
from doppler.policies.dual import make_policy  # noqa: E402
from doppler.programs import ffnn  # noqa: E402
from doppler.runs.run import resume_run, start_run  # noqa: E402
from doppler.serving.prediction import Predictor  # noqa: E402
from doppler.serving.trials import Trials  # noqa: E402
from doppler.sharding import shard  # noqa: E402
from doppler.sim import Noise, SimConfig, Simulator  # noqa: E402
from doppler.topology import Topology  # noqa: E402
from doppler.topology.presets import read_topology  # noqa: E402
from doppler.trace import Trace, read_trace  # noqa: E402
from doppler.training.api import make_manifest, resume, train  # noqa: E402
from doppler.training.config import RealConfig, TrainConfig  # noqa: E402
from doppler.training.real import gains, pick  # noqa: E402
from doppler.training.trainer import RealProgress, Trainer  # noqa: E402

MACHINE = Topology.preset("p100x4")
NOISE = Noise(exec_sigma=0.02, transfer_sigma=0.05)
REAL = replace(
    CONFIG,
    stages=("real",),
    real=RealConfig(episodes=20, batch=4, samples=8, plain=1, moves=20, lessons=2, max_runs=4),
)


def small() -> Graph:
    """A graph whose vertices say what they execute."""
    return shard(ffnn(batch=4096, hidden=8192), 4)


def limping(topology: Topology = MACHINE) -> Topology:
    """The same machine, but for the first device at half its speed, and links at a third."""
    devices = [
        replace(
            device,
            flops_per_s={k: v / (2 if i == 0 else 1) for k, v in device.flops_per_s.items()},
            memory_bytes_per_s=device.memory_bytes_per_s / (2 if i == 0 else 1),
        )
        for i, device in enumerate(topology.devices)
    ]
    links = [
        replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / 3)
        for link in topology.links
    ]
    return replace(topology, devices=tuple(devices), links=tuple(links))


def machine(noise: Noise = NOISE) -> Simulator:
    return Simulator(limping(), SimConfig(noise=noise))


class Flaky:
    """An executor that refuses some assignments, and says what it ran."""

    def __init__(self, inner: Any, refuse: Callable[[np.ndarray, int], Exception | None]) -> None:
        self.inner, self.refuse = inner, refuse
        self.ran: list[bytes] = []

    def run(self, graph: Graph, assignment: Assignment, seed: int = 0) -> Trace:
        self.ran.append(assignment.devices.tobytes())
        if (error := self.refuse(assignment.devices, len(self.ran))) is not None:
            raise error
        trace: Trace = self.inner.run(graph, assignment, seed)
        return trace


def trials_of(work: Graph, executor: Any, config: RealConfig = REAL.real) -> Trials:
    return Trials(executor, work, MACHINE, config, Predictor(work, MACHINE, SimConfig()))


def run_of(work: Graph, config: TrainConfig, path: Path, parent: Path | None = None) -> Path:
    executor = machine()
    train(work, MACHINE, config, out=path, start=parent, executor=executor)
    return path


def test_it_gets_faster_on_a_machine_unlike_its_topology(tmp_path: Path) -> None:
    work, truth = small(), Simulator(limping())
    before = replace(CONFIG, imitation=replace(CONFIG.imitation, episodes=4))
    parent = tmp_path / "parent"
    train(work, MACHINE, before, out=parent)
    config = replace(REAL, real=replace(REAL.real, episodes=64, moves=2000))
    run = run_of(work, config, tmp_path / "run", parent)
    label = f"{work.name}@p100x4"
    first, best = (read_assignment(p / f"best/{label}.assignment.json") for p in (parent, run))
    assert truth.run(work, best).makespan_s < 0.95 * truth.run(work, first).makespan_s
    last = rows(run)[-1]
    assert last["stage"] == "real"
    assert last["replaced"] >= 1
    assert last["failures"] == 0
    assert last["speedup"] > 1.04
    assert last["sim_error"] < 0.1 < rows(run)[0]["sim_error"]
    assert last["runs"] >= 40
    assert 0 < last["spread_s"] < 0.1 * last["best_s"]
    assert last["best_s"] == pytest.approx(truth.run(work, best).makespan_s, rel=0.05)
    trace = read_trace(run / f"best/{label}.trace.json")
    assert trace.makespan_s == pytest.approx(last["best_s"], rel=0.1)
    seen = Simulator(read_topology(run / f"best/{label}.topology.json"))
    assert seen.run(work, best).makespan_s == pytest.approx(last["best_s"], rel=0.1)


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
        mine, theirs = (load(p / "state.safetensors") for p in (path, straight))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def load(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(path)


def start_real(work: Graph, path: Path, parent: Path) -> Any:
    from doppler.training.api import starting_assignments, starting_policy

    policy = starting_policy(parent)
    manifest = make_manifest([work], [MACHINE], REAL, policy=policy)
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
    trainer = Trainer(
        [(graph(), MACHINE)],
        replace(config, seconds=0.6),
        policy=make_policy(config.policy, 0),
        executor=machine(),
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


def test_penalties() -> None:
    work = graph()
    devices = np.where(work.is_input, -1, 0)
    slow = np.where(work.is_input, -1, np.arange(work.num_vertices) % 3)
    bad = np.where(work.is_input, -1, 3)
    executor = Flaky(machine(), lambda d, _: EngineError("broken") if (d == 3).any() else None)
    trials = trials_of(work, executor)
    trials.begin([bad, devices])
    assert np.array_equal(trials.devices, devices)
    assert trials.failures == 1
    found = trials.measure(np.stack([slow, bad]))
    assert trials.failures == 1
    assert found[1] == np.inf
    assert trials.penalized(found)[1] == 2 * max(found[0], trials.worst_s)
    assert not trials.challenge(bad)
    assert (trials.failures, np.array_equal(trials.devices, devices)) == (2, True)
    before = len(executor.ran)
    assert trials.measure(bad[None]) == [np.inf]  # it is not tried again
    assert len(executor.ran) == before


def test_an_incumbent_that_fails_again_and_again_ends_it() -> None:
    work = graph()
    first = np.where(work.is_input, -1, 0)
    broken: list[bool] = []
    executor = Flaky(machine(), lambda *_: EngineError("the fan stopped") if broken else None)
    trials = trials_of(work, executor)
    trials.begin([first])
    broken.append(True)
    with pytest.raises(TrainingError, match="failed 3 times in a row: the fan stopped") as caught:
        trials.measure_incumbent()
    assert caught.value.hint
    assert trials.failures == 3
    once = trials_of(work, Flaky(machine(), lambda _, n: EngineError("x") if n == 6 else None))
    once.begin([first])
    for _ in range(4):
        once.measure_incumbent()
    assert once.failures == 1
    with pytest.raises(TrainingError, match=r"no assignment of .* runs: the fan stopped"):
        trials_of(work, executor).begin([first])


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


def test_the_paper_preset() -> None:
    from doppler.training.config import preset

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
