"""Run directories: killed at any moment, they can be resumed or started anew."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from training.tiny import CONFIG, manifest, resumed, started, take, trained  # noqa: E402

from doppler.base.writing import TEMPORARY  # noqa: E402
from doppler.errors import CheckpointError, ConfigError, FormatError  # noqa: E402
from doppler.policies.checkpoint import load_any, write_tensors  # noqa: E402
from doppler.runs.directory import STATE_FILE  # noqa: E402
from doppler.runs.run import resume_run, start_run  # noqa: E402


def strays(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.startswith(TEMPORARY)]


def test_a_kill_at_any_write_leaves_what_can_be_resumed_or_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory as it is before and after every file that is written."""
    path, seen = tmp_path / "run", tmp_path / "seen"
    rename, moments = Path.replace, []

    def replace(self: Path, target: Any) -> Path:
        for done in (False, True):
            if self.is_relative_to(path):
                moments.append(seen / f"{len(moments)}")
                shutil.copytree(path, moments[-1])
            if not done:
                result = rename(self, target)
        return result

    monkeypatch.setattr("os.fsync", lambda _: None)  # takes long, and nothing is lost here
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replace)
        with started(path) as run:
            take(run, 1)
    anew = 0
    for moment in moments[::3]:
        if (moment / "config.json").exists():
            with pytest.raises(ConfigError, match="holds a training run already"):
                started(moment)
            resume_run(moment).close()
        else:
            anew += 1
            with pytest.raises(ConfigError, match="leave out --resume") as caught:
                resume_run(moment)
            assert caught.value.hint is not None
            started(moment).close()
        assert strays(moment) == []
    assert 0 < anew < len(moments[::3])


def test_what_others_put_there_is_not_removed(tmp_path: Path) -> None:
    for name in (".lock", "state.safetensors", "notes.txt"):
        (tmp_path / name).write_text("mine")
        if name != ".lock":
            with pytest.raises(ConfigError, match="is not empty"):
                started(tmp_path if name == "notes.txt" else _alone(tmp_path, name))
    assert (tmp_path / "notes.txt").read_text() == "mine"


def _alone(folder: Path, name: str) -> Path:
    """A folder with a file of that name, and no lock: it is not ours."""
    other = folder.with_name("alone")
    other.mkdir()
    (other / name).write_text("mine")
    return other


def test_a_start_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("doppler.runs.directory.write_manifest", full)
    with pytest.raises(Exception, match="No space left"):
        start_run(manifest(CONFIG), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_that_was_damaged_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", updates=1)
    for name in (STATE_FILE, "policy.safetensors"):
        data = bytearray((run / name).read_bytes())
        data[-3] ^= 1  # a number that is still a number
        (run / name).write_bytes(data)
    with pytest.raises(CheckpointError, match="is damaged: its checksum"):
        resume_run(run)
    with pytest.raises(CheckpointError, match="is damaged: its checksum"):
        load_any(run / "policy.safetensors")


def test_a_topology_that_was_changed_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", updates=1)
    (file,) = (run / "topologies").iterdir()
    document = json.loads(file.read_text())
    document["name"] = "other"
    file.write_text(json.dumps(document))
    with pytest.raises(FormatError, match="is not the topology that the run was started with"):
        resume_run(run)


@pytest.mark.parametrize(
    ("key", "value"), [("stage", 7), ("stage", -1), ("stage", "sim"), ("update", -1)]
)
def test_numbers_of_stages_and_updates_are_checked(tmp_path: Path, key: str, value: Any) -> None:
    run = trained(tmp_path / "run", updates=1)
    from safetensors import safe_open

    with safe_open(run / STATE_FILE, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    metadata["trainer"] = json.dumps(json.loads(metadata["trainer"]) | {key: value})
    write_tensors(run / STATE_FILE, tensors, metadata)
    with pytest.raises(CheckpointError, match=f"`{key}` is"):
        resume_run(run)


def test_temporary_files_are_cleaned_by_the_next_start(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", updates=1)
    for folder in (run, run / "best"):
        (folder / f"{TEMPORARY}0123456789abcdef").write_text("half")
    kept = run / f"{TEMPORARY}mine"
    kept.write_text("not one of ours")
    resumed(run, updates=1)
    assert strays(run) == [kept]
