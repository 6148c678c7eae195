"""Runs that go wrong: a clear error, nothing lost, and the last checkpoint always loads."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402
from training.tiny import (  # noqa: E402
    CONFIG,
    assert_same,
    press,
    resumed,
    started,
    take,
    trained,
)

from doppler.errors import (  # noqa: E402
    CheckpointError,
    ConfigError,
    DopplerError,
    TrainingError,
)
from doppler.policies.checkpoint import load_policy  # noqa: E402
from doppler.runs import metrics  # noqa: E402
from doppler.runs.run import resume_run  # noqa: E402
from doppler.sim import Noise  # noqa: E402
from doppler.training import trainer  # noqa: E402


def test_a_loss_that_is_no_number_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imitate = trainer.UPDATES["imitation"]

    def diverged(*arguments: Any) -> Any:
        loss, makespans = imitate(*arguments)
        return loss * (torch.nan if arguments[4] == 2 else 1.0), makespans

    monkeypatch.setitem(trainer.UPDATES, "imitation", diverged)
    with (
        pytest.raises(TrainingError, match="is nan at update 2"),
        started(tmp_path / "run", save_every_s=0.0) as run,
    ):
        take(run, 99)
    monkeypatch.undo()
    load_policy(tmp_path / "run/policy.safetensors")
    assert_same(resumed(tmp_path / "run"), trained(tmp_path / "straight"))


def test_a_directory_is_used_by_one_process(tmp_path: Path) -> None:
    with started(tmp_path / "run"):
        for use in (lambda: resume_run(tmp_path / "run"), lambda: started(tmp_path / "run")):
            with pytest.raises(DopplerError, match=r"in use|holds a training run"):
                use()
    with resume_run(tmp_path / "run"), pytest.raises(TrainingError, match="in use") as caught:
        resume_run(tmp_path / "run")
    assert caught.value.hint
    resumed(tmp_path / "run")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text(""), "is a file"),
        (lambda path: (path.mkdir(), (path / "notes.txt").write_text("")), "is not empty"),
        (lambda path: trained(path, updates=1), "holds a training run already"),
    ],
)
def test_a_directory_must_be_new(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=message) as caught:
        started(tmp_path / "run")
    assert caught.value.hint
    assert sorted(tmp_path.rglob("*")) == before


def test_only_a_run_is_resumed(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="is not a training run"):
            resume_run(path)


def test_a_mistake_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot compute on device `cuda:99`"):
        started(tmp_path / "run", replace(CONFIG, device="cuda:99"))
    with pytest.raises(ConfigError, match="cannot compute on device `gpu`"):
        started(tmp_path / "run", replace(CONFIG, device="gpu"))
    nobody = replace(CONFIG, noise=Noise(slowdown=(1.0,)))
    with pytest.raises(ConfigError, match="slowdown"):
        started(tmp_path / "run", nobody)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A disk without room for files whose names hold one of these words."""
    words: list[str] = []
    replace_file = Path.replace

    def refuse(self: Path, target: Any) -> Path:
        if any(word in str(target) for word in words):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace_file(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    return words


@pytest.mark.parametrize("word", ["state", "policy", "assignment", "trace"])
def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, full: list[str], word: str) -> None:
    """Whichever file is the first that finds no room."""
    with (
        pytest.raises(TrainingError, match="No space left") as caught,
        started(tmp_path / "run", save_every_s=0.0) as run,
    ):
        press(run, lambda: full.append(word))
    assert f"dop train --resume -o {tmp_path / 'run'}" in (caught.value.hint or "")
    full.clear()
    load_policy(tmp_path / "run/policy.safetensors")
    assert list(tmp_path.rglob(".*.safetensors.*")) == []
    assert_same(resumed(tmp_path / "run"), trained(tmp_path / "straight"))


def test_metrics_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = metrics.MetricsFile.write

    def refuse(self: Any, step: int, progress: Any, *rest: Any) -> None:
        if step == 3:
            self._file.write(b'{"st')
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, step, progress, *rest)

    monkeypatch.setattr(metrics.MetricsFile, "write", refuse)
    with pytest.raises(TrainingError, match="No space left"), started(tmp_path / "run") as run:
        take(run, 99)
    monkeypatch.undo()
    assert_same(resumed(tmp_path / "run"), trained(tmp_path / "straight"))


def test_a_disk_that_is_full_from_the_start(tmp_path: Path, full: list[str]) -> None:
    full.append("run")
    with pytest.raises(TrainingError, match="No space left") as caught:
        started(tmp_path / "run")
    assert "--resume" not in (caught.value.hint or "")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_where_nothing_may_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(TrainingError, match="cannot write"):
        started(tmp_path / "run")


def cut(path: Path) -> None:
    data = (path / "state.safetensors").read_bytes()
    (path / "state.safetensors").write_bytes(data[: len(data) // 2])


def scrambled(path: Path) -> None:
    (path / "state.safetensors").write_bytes(os.urandom(1000))


def of_a_policy(path: Path) -> None:
    (path / "state.safetensors").write_bytes((path / "policy.safetensors").read_bytes())


def absent(path: Path) -> None:
    (path / "state.safetensors").unlink()


def remade(path: Path, change: Any) -> None:
    file = path / "state.safetensors"
    data = file.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    tensors = load_file(file)
    change(tensors, metadata)
    metadata.pop("checksum", None)
    save_file(tensors, file, metadata)


def newer(path: Path) -> None:
    remade(path, lambda tensors, metadata: metadata.update(version="2"))


def of_other_features(path: Path) -> None:
    remade(path, lambda tensors, metadata: metadata.update(features_version="99"))


def without_values(path: Path) -> None:
    remade(path, lambda tensors, metadata: metadata.update(trainer="{}"))


def without_json(path: Path) -> None:
    remade(path, lambda tensors, metadata: metadata.update(tally="{"))


def without_a_weight(path: Path) -> None:
    remade(path, lambda tensors, metadata: tensors.pop("policy.place.out.weight"))


def without_the_best(path: Path) -> None:
    remade(path, lambda tensors, metadata: tensors.pop("exercise.0.best"))


def not_finite(path: Path) -> None:
    remade(path, lambda tensors, metadata: tensors["policy.place.out.weight"].fill_(torch.nan))


def of_another_width(path: Path) -> None:
    text = (path / "config.json").read_text()
    (path / "config.json").write_text(text.replace('"width": 4', '"width": 8'))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "not all of one"),
        (scrambled, "is not a safetensors file"),
        (of_a_policy, "`format` is 'doppler-policy', not 'doppler-training'"),
        (absent, "does not exist"),
        (newer, "`version` is '2'"),
        (of_other_features, "version '99' of the features"),
        (without_values, "does not fit"),
        (without_json, "`tally` is not a JSON object"),
        (without_a_weight, "does not fit"),
        (without_the_best, "does not fit"),
        (not_finite, "not finite"),
        (of_another_width, "does not fit"),
    ],
)
def test_a_damaged_state_is_refused_and_left_alone(
    tmp_path: Path, damage: Any, message: str
) -> None:
    run = trained(tmp_path / "run", updates=4)
    damage(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=message) as caught:
        resume_run(run)
    assert caught.value.hint
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    load_policy(run / "policy.safetensors")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"doppler-run"', '"doppler-ruin"', "`format` is 'doppler-ruin'"),
        ('"version": 1', '"version": 2', "`version` is 2"),
        ('"clip"', '"clop"', "unknown key `clop`"),
        ('"graphs": [', '"graphs": [7, ', "`graphs` must be a list of objects"),
        ("graphs/random", "graphs/rondom", "no file"),
        ('"parent"', '"parents"', "unknown key `parents`"),
        ('"digest": "sha256:', '"digest": "sha256:0', "is not the graph that the run was"),
        ('"device": "cpu"', '"device": "gpu"', "cannot compute on device `gpu`"),
    ],
)
def test_a_damaged_config_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    run = trained(tmp_path / "run", updates=1)
    text = (run / "config.json").read_text()
    assert old in text
    (run / "config.json").write_text(text.replace(old, new))
    with pytest.raises(DopplerError, match=message):
        resume_run(run)
    (run / "config.json").write_text(text)
    resumed(run)
