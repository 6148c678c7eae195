"""Jobs: pieces of work by their content, done by several processes, and kept when done.

The result of a job is a file named by a digest of all that it depends on: its kind, its
parameters, and the graph and the machine that these name. So a run that was stopped goes on where
it was, and labels that need the same job share it.
"""

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from doppler.base.files import parse_json, read_text
from doppler.base.progress import report
from doppler.base.writing import write_text
from doppler.placers.base import cores

Result = dict[str, Any]
POLICY = ".safetensors"  # the file of a training that others start from
TRAINING = "train"
KINDS = {  # "module:function", which takes parameters and a `Workshop`
    "place": "doppler.reproduce.placements:place",
    "barriers": "doppler.reproduce.placements:with_barriers",
    TRAINING: "doppler.reproduce.learning:train",
    "judge": "doppler.reproduce.learning:judge",
    "untrained": "doppler.reproduce.learning:untrained",
    "real": "doppler.reproduce.learning:go_on_with_noise",
    "grow": "doppler.reproduce.experiments.growth:grow",
    "engine": "doppler.reproduce.experiments.engines:run_on_engine",
}


@dataclass(frozen=True)  # without slots: the key is made once
class PaperJob:
    """A piece of work whose result is JSON."""

    kind: str
    parameters: Mapping[str, Any]
    cost_s: float = 1.0  # about how long it takes on one core
    needs: "tuple[PaperJob, ...]" = ()  # that must be done before
    alone: bool = False  # it measures time, so nothing else may run

    @cached_property
    def key(self) -> str:
        """A digest of all that the result depends on."""
        from doppler.reproduce.placements import digest_of

        content = {
            "kind": self.kind,
            "parameters": dict(self.parameters),
            "problem": digest_of(self.parameters),
            "needs": [job.key for job in self.needs],
        }
        text = json.dumps(content, sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Workshop:
    """The folder that jobs work in, and the job at hand."""

    folder: Path
    key: str = ""
    needs: tuple[str, ...] = ()  # keys of jobs that are done

    def file(self, name: str, key: str | None = None) -> Path:
        """A file or folder of this job, or of another one."""
        return self.folder / "jobs" / f"{key or self.key}{name}"

    def result(self, key: str) -> Result | None:
        """What a job came to, if it is done."""
        path = self.file(".json", key)
        return parse_json(read_text(path), str(path)) if path.exists() else None


@dataclass(slots=True)
class Results:
    """The results of jobs."""

    by_key: dict[str, Result] = field(default_factory=dict)

    def __getitem__(self, job: PaperJob) -> Result:
        return self.by_key[job.key]

    def all(self, jobs: Iterable[PaperJob]) -> list[Result]:
        """Those of several jobs."""
        return [self[job] for job in jobs]


def with_needs(jobs: Iterable[PaperJob]) -> dict[str, PaperJob]:
    """The jobs and all that they need, each once, by their keys."""
    found: dict[str, PaperJob] = {}
    left = list(jobs)
    while left:
        job = left.pop()
        if job.key not in found:
            found[job.key] = job
            left += job.needs
    return found


def missing(jobs: Iterable[PaperJob], folder: Path) -> list[PaperJob]:
    """Those that have no result yet, with what they need, the longest first.

    A training that is done is done again if another job needs its policy, and that is gone.
    """
    shop = Workshop(folder)
    left = {k: j for k, j in with_needs(jobs).items() if not shop.file(".json", k).exists()}
    asking = list(left.values())
    while asking:
        trainings = [job for job in asking.pop().needs if job.kind == TRAINING]
        for job in trainings:
            if job.key not in left and not shop.file(POLICY, job.key).exists():
                left[job.key] = job
                asking.append(job)
    return sorted(left.values(), key=lambda job: -job.cost_s)


def estimate_s(jobs: Iterable[PaperJob], workers: int) -> float:
    """About how long jobs take on as many cores.

    >>> estimate_s([PaperJob("place", {}, 30.0), PaperJob("place", {}, 10.0)], 2)
    30.0
    """
    jobs = list(jobs)
    together = [job.cost_s for job in jobs if not job.alone]
    shared = max([sum(together) / max(workers, 1), *together], default=0.0)
    return shared + sum(job.cost_s for job in jobs if job.alone)


def num_workers() -> int:
    """How many processes work: one per core."""
    return len(cores()) or os.cpu_count() or 1


def run_jobs(jobs: Iterable[PaperJob], folder: Path, *, workers: int | None = None) -> Results:
    """The results of jobs; those that are not there are done first, and kept as they come."""
    jobs = list(jobs)
    (folder / "jobs").mkdir(parents=True, exist_ok=True)
    left = missing(jobs, folder)
    count = min(workers or num_workers(), max(len(left), 1))
    if count == 1 or len(left) == 1:
        _do_here(left, folder)
    elif left:
        _do_in_processes(left, folder, count)
    shop, found = Workshop(folder), Results()
    for key in with_needs(jobs):
        result = shop.result(key)
        assert result is not None
        found.by_key[key] = result
    return found


def _do_here(left: list[PaperJob], folder: Path) -> None:
    done, queue = 0, list(left)
    while queue:
        waiting = {job.key for job in queue}
        job = next(j for j in queue if not any(need.key in waiting for need in j.needs))
        report("reproducing", done, len(left))
        perform(job.kind, dict(job.parameters), *_place_of(job, folder))
        queue.remove(job)
        done += 1
    report("reproducing", len(left), len(left))


def _do_in_processes(left: list[PaperJob], folder: Path, workers: int) -> None:
    """Together where they may; those that measure time follow, one by one."""
    context = multiprocessing.get_context("spawn")
    started = context.Value("i", 0)
    apart = [job for job in left if job.alone]
    queue = [job for job in left if not job.alone]
    total, done = len(left), 0
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_take_core, initargs=(started,)
    ) as pool:
        running: dict[Future[None], PaperJob] = {}
        try:
            while queue or running:
                waiting = {job.key for job in (*queue, *running.values())}
                for job in [j for j in queue if not any(n.key in waiting for n in j.needs)]:
                    if len(running) >= workers:
                        break
                    queue.remove(job)
                    place = _place_of(job, folder)
                    running[pool.submit(perform, job.kind, dict(job.parameters), *place)] = job
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    future.result()
                    del running[future]
                    done += 1
                    report("reproducing", done, total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    _do_here(apart, folder)


def _place_of(job: PaperJob, folder: Path) -> tuple[str, str, tuple[str, ...]]:
    return str(folder), job.key, tuple(need.key for need in job.needs)


def _take_core(started: Any) -> None:
    """Keep this process to one core, so that what it calls takes one thread."""
    with started.get_lock():
        number = started.value
        started.value += 1
    own = cores()
    if own:
        os.sched_setaffinity(0, [own[number % len(own)]])


def perform(kind: str, parameters: Result, folder: str, key: str, needs: tuple[str, ...]) -> None:
    """Do a job and write its result."""
    module, _, name = KINDS[kind].partition(":")
    work: Callable[[Result, Workshop], Result] = getattr(import_module(module), name)
    shop = Workshop(Path(folder), key, needs)
    result = work(parameters, shop)
    text = json.dumps({"kind": kind, "parameters": parameters, **result}, default=float)
    write_text(shop.file(".json"), text + "\n")
