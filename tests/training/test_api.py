"""`train`: one call from graphs to a placer."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from training.tiny import CONFIG, graph, trained  # noqa: E402

from doppler.errors import CheckpointError, ConfigError  # noqa: E402
from doppler.placers.learned.doppler import DopplerPlacer  # noqa: E402
from doppler.problem import Problem  # noqa: E402
from doppler.runs.manifest import read_manifest  # noqa: E402
from doppler.topology import Topology  # noqa: E402
from doppler.training import api  # noqa: E402
from doppler.training.api import resume, train  # noqa: E402
from doppler.training.trainer import Trainer  # noqa: E402

MACHINE = Topology.preset("p100x4")


def same(one: DopplerPlacer, other: DopplerPlacer) -> bool:
    mine, theirs = one.policy.state_dict(), other.policy.state_dict()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


def test_with_and_without_a_directory(tmp_path: Path) -> None:
    placer = train(graph(), MACHINE, CONFIG)
    placer.place(Problem(graph(), MACHINE)).check(graph(), MACHINE)
    kept = train([graph()], [MACHINE], CONFIG, out=tmp_path / "run")
    assert same(placer, kept)
    assert same(placer, DopplerPlacer.from_path(tmp_path / "run"))
    assert same(placer, resume(tmp_path / "run"))


def test_going_on_from_another_run(tmp_path: Path) -> None:
    """From a run, a checkpoint and a placer alike, on another graph, whatever its config says."""
    run = trained(tmp_path / "run")
    parent = DopplerPlacer.from_path(run)
    config = replace(CONFIG, stages=("sim",), policy=replace(CONFIG.policy, width=8), seed=5)
    starts = [run, run / "policy.safetensors", str(run), parent]
    placers = [
        train(graph(7), MACHINE, config, out=tmp_path / str(i), start=start)
        for i, start in enumerate(starts)
    ]
    assert all(same(placers[0], placer) for placer in placers[1:])
    assert not same(placers[0], parent)
    assert same(parent, DopplerPlacer.from_path(run))
    document = read_manifest(tmp_path / "0")
    assert document.config.policy.width == 4
    assert document.parent is not None
    assert document.parent["path"] == str(run / "policy.safetensors")
    assert document.parent["digest"].startswith("sha256:")
    nothing = replace(config, sim=replace(config.sim, episodes=0))
    assert same(train(graph(7), MACHINE, nothing, start=run), parent)


def test_a_trainer_takes_the_shape_of_the_policy_it_is_given() -> None:
    policy = train(graph(), MACHINE, CONFIG).policy
    other = replace(CONFIG, policy=replace(CONFIG.policy, width=8, place=False))
    trainer = Trainer([(graph(), MACHINE)], other, policy=policy)
    assert trainer.config.policy == CONFIG.policy
    assert trainer.records[0].exercise.expert is not None


def test_ctrl_c_saves_and_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = api.start_run

    def begin_and_press(*arguments: Any, **options: Any) -> Any:
        run = begin(*arguments, **options)
        log = run._log

        def press(progress: Any, seconds: float) -> None:
            log(progress, seconds)
            if run.tally.steps == 2:
                os.kill(os.getpid(), signal.SIGINT)

        run._log = press
        return run

    monkeypatch.setattr(api, "start_run", begin_and_press)
    with pytest.raises(KeyboardInterrupt):
        train(graph(), MACHINE, CONFIG, out=tmp_path / "run")
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 2
    assert same(resume(tmp_path / "run"), train(graph(), MACHINE, CONFIG))


def test_torch_has_all_its_threads_again() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        train(graph(), MACHINE, replace(CONFIG, stages=("imitation",)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one graph"):
        train([], MACHINE, CONFIG)
    with pytest.raises(ConfigError, match="at least one graph"):
        train(graph(), [], CONFIG)
    with pytest.raises(CheckpointError, match="does not exist"):
        train(graph(), MACHINE, CONFIG, start=tmp_path / "nowhere", out=tmp_path / "run")
    with pytest.raises(CheckpointError, match="does not exist"):
        train(graph(), MACHINE, CONFIG, start=tmp_path, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="device"):
        train(graph(), MACHINE, replace(CONFIG, device="gpu"))
    assert list(tmp_path.iterdir()) == []
