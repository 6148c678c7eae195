"""RunDir: one training directory, which can be resumed after a crash at any time.

```text
runs/x/
├── config.json                      what it was started with, written last when a run begins
├── graphs/ topologies/              copies, so that a run needs nothing else; of a
│                                    pretraining, the recipe in config.json is enough
├── validation.json                  of a pretraining: what is known of the validation problems
├── untrained.json                   makespans of placers that need no training
├── metrics.jsonl                    a line per update
├── tensorboard/                     events, where TensorBoard is installed
├── state.safetensors                all that changes in training: what `--resume` reads
├── policy.safetensors               the policy in it: what placers load
└── best/GRAPH@TOPOLOGY.*.json       the best assignments known, and their traces; after Stage III
                                     these are measured, and there is the topology as measured
```

`state.safetensors` is the checkpoint: it is replaced in one step, and first; the policy and the
best assignments are copies of what is in it.
"""

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import IO, Any

from doppler.assignment import write_assignment
from doppler.base.writing import TEMPORARY, remove_temporaries
from doppler.errors import CheckpointError, ConfigError, OutputError, TrainingError
from doppler.mdp.features import FEATURE_VERSION
from doppler.placers.learned.doppler import POLICY_FILE
from doppler.policies.checkpoint import (
    check_finite,
    checked_metadata,
    json_object,
    opened,
    save_policy,
    write_tensors,
)
from doppler.report.curves import UNTRAINED_FILE
from doppler.runs import manifest as manifests
from doppler.runs.manifest import (
    Manifest,
    file_names,
    is_pretraining,
    read_manifest,
    write_manifest,
)
from doppler.runs.validation_set import FILE as VALIDATION_FILE
from doppler.topology.io import write_topology
from doppler.trace import write_trace
from doppler.training.exercise_record import ExerciseRecord
from doppler.training.trainer import Trainer

FORMAT, VERSION = "doppler-training", 1
STATE_FILE, LOCK_FILE = "state.safetensors", ".lock"
BEST, BEST_FILES = "best", "*.assignment.json"
FILES = (STATE_FILE, POLICY_FILE, UNTRAINED_FILE)  # that are written before config.json
FOLDERS = (BEST, manifests.GRAPHS, manifests.TOPOLOGIES)


@dataclass(slots=True)
class Tally:
    """What a run has done so far, beyond what its trainer knows."""

    steps: int = 0  # updates, in all stages: lines of the metrics
    episodes: dict[str, int] = field(default_factory=dict)  # by exercise or variant, in all stages
    seconds: dict[str, float] = field(default_factory=dict)


class RunDir:
    """A run's directory, locked against other processes until it is closed."""

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        """Made by `create` or `open`."""
        self.path, self._lock = path, lock
        self._best_s: dict[str, float] = {}  # of the assignments written

    @classmethod
    def create(cls, path: Path) -> "RunDir":
        """A new one; an error where there is something already."""
        _check_absent(path)
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)
            made = cls(path, _locked(path))
            _clear(path)
            return made

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        """One that is there."""
        manifests.check_run(path)
        with explained(path):
            found = cls(path, _locked(path))
            for folder in (path, *(path / name for name in FOLDERS)):
                remove_temporaries(folder)
            return found

    def close(self) -> None:
        """Let other processes use it."""
        self._lock.close()

    def discard(self) -> None:
        """Remove what was written if no run has begun, and the folder if nothing else is there."""
        with suppress(OSError):
            if not (self.path / manifests.FILE).exists():
                _clear(self.path)
        self.close()
        with suppress(OSError):
            if [found.name for found in self.path.iterdir()] == [LOCK_FILE]:
                (self.path / LOCK_FILE).unlink()
                self.path.rmdir()

    def write_manifest(self, manifest: Manifest) -> None:
        """Write what the run is started with."""
        with explained(self.path):
            write_manifest(manifest, self.path)

    def read_manifest(self) -> Manifest:
        """What the run was started with."""
        return read_manifest(self.path)

    def save(self, trainer: Trainer, tally: Tally, manifest: Manifest) -> None:
        """Write the checkpoint, then what is derived from it."""
        tensors, values = trainer.state()
        check_finite(tensors, f"the state for `{self.path}`")
        metadata = {
            "format": FORMAT,
            "version": str(VERSION),
            "features_version": str(FEATURE_VERSION),
            "trainer": json.dumps(values, allow_nan=False),
            "tally": json.dumps(_tally_to(tally), allow_nan=False),
        }
        with explained(self.path):
            write_tensors(self.path / STATE_FILE, tensors, metadata)
            self.write_derived(trainer, tally, manifest)

    def write_derived(self, trainer: Trainer, tally: Tally, manifest: Manifest) -> None:
        """Write the policy, and those best assignments that are new, with their traces."""
        records, drawn = trainer.records, manifest.recipe is not None
        history = manifest.provenance() | {
            "episodes": sum(tally.episodes.values()) if drawn else tally.episodes,
            "seconds": trainer.seconds,
        }
        if not drawn:
            history["best_s"] = {r.label: r.best_s for r in records if isfinite(r.best_s)}
        save_policy(trainer.policy, self.path / POLICY_FILE, history)
        if drawn:  # the best assignments of random problems are of no use
            return
        for record, path in zip(records, self.best_files(records), strict=True):
            if isfinite(record.best_s) and self._best_s.get(record.label) != record.best_s:
                _write_best(record, path)
                self._best_s[record.label] = record.best_s

    def best_files(self, records: Sequence[ExerciseRecord]) -> list[Path]:
        """Where the best assignment of each exercise is."""
        names = file_names([record.label for record in records])
        return [self.path / BEST / f"{name}.assignment.json" for name in names]

    def load(self, trainer: Trainer) -> Tally:
        """Take a trainer to where the checkpoint was taken."""
        path = self.path / STATE_FILE
        with opened(path) as file:
            metadata = checked_metadata(file, path, FORMAT, VERSION, "state of a training run")
            names: list[str] = file.keys()
            tensors = {name: file.get_tensor(name).clone() for name in names}
        values, counts = (json_object(metadata, key, path) for key in ("trainer", "tally"))
        check_finite(tensors, f"`{path}`")
        try:
            trainer.load_state(tensors, values)
            return _tally_from(counts)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"`{path}` does not fit the run's {manifests.FILE}: {error}",
                hint=f"start a new run from its policy: --from {self.path}",
            ) from None


def _check_absent(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise ConfigError(f"`{path}` is a file", hint="give the run a directory of its own")
    if (path / manifests.FILE).is_file():
        raise ConfigError(
            f"`{path}` holds a training run already",
            hint=f"resume it: {_how_to_resume(path)}; or choose another directory",
        )
    if path.is_dir() and not _is_unfinished(path):
        raise ConfigError(f"`{path}` is not empty", hint="choose another directory")


def _is_unfinished(path: Path) -> bool:
    """Whether a folder is empty, or holds only what a run writes before its config.json."""
    names = {found.name for found in path.iterdir() if not found.name.startswith(TEMPORARY)}
    own = {LOCK_FILE, VALIDATION_FILE, *FILES, *FOLDERS}
    return not names or (LOCK_FILE in names and names <= own)


def _clear(path: Path) -> None:
    """Remove what a run that was killed as it began has left."""
    remove_temporaries(path)
    for folder in (path / name for name in FOLDERS if (path / name).is_dir()):
        remove_temporaries(folder)
        for file in sorted(folder.glob("*.json")):
            file.unlink()
        folder.rmdir()
    for name in FILES:
        (path / name).unlink(missing_ok=True)


def _locked(path: Path) -> IO[bytes]:
    """An open file that no other process can lock while it is open."""
    lock = (path / LOCK_FILE).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise TrainingError(
            f"run directory `{path}` is in use",
            hint="another process trains there: wait for it, or choose another directory",
        ) from None
    except OSError:  # a file system without locks
        pass
    return lock


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """What cannot be written stops the run, and the checkpoint before it stands."""
    try:
        yield
    except OSError as error:
        what = error.message if isinstance(error, OutputError) else _what(error, path)
        hint = "make room, or see that you may write there"
        if (path / STATE_FILE).is_file():
            hint += f"; the last checkpoint is whole, then: {_how_to_resume(path)}"
        raise TrainingError(what, hint=hint) from None


def _how_to_resume(path: Path) -> str:
    return f"dop {'pretrain' if is_pretraining(path) else 'train'} --resume -o {path}"


def _what(error: OSError, path: Path) -> str:
    return f"cannot write `{error.filename or path}`: {error.strerror or error}"


def _write_best(record: ExerciseRecord, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    assignment = record.best()
    if (topology := record.recalibrated()) is not None:
        write_topology(topology, topology_file(path))
    if (trace := record.best_trace()) is not None:
        write_trace(trace, path.with_name(path.name.replace(".assignment.", ".trace.")))
    write_assignment(assignment, path)


def topology_file(assignment: Path) -> Path:
    """Where the topology is as Stage III measured it, beside the best assignment."""
    return assignment.with_name(assignment.name.replace(".assignment.", ".topology."))


def _tally_to(tally: Tally) -> dict[str, Any]:
    return {"steps": tally.steps, "episodes": tally.episodes, "seconds": tally.seconds}


def _tally_from(values: dict[str, Any]) -> Tally:
    return Tally(int(values["steps"]), dict(values["episodes"]), dict(values["seconds"]))
