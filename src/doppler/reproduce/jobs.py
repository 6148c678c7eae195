"""Jobs: pieces of work by their content, done by several processes, and kept when done.

The result of a job is a file named by a digest of all that it depends on: its kind, its
parameters, and the graph and the machine that these name. So a run that was stopped goes on where
it was, and labels that need the same job share it.
"""

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Self

from doppler.base.files import parse_json, read_text
from doppler.base.progress import report
from doppler.base.writing import write_text
from doppler.placers.base import cores

Result = dict[str, Any]
POLICY = ".safetensors"  # the file of a training that others start from
WEIGHTS, TOPOLOGY = ".npz", ".topology.json"  # the same of jobs on a real machine
TRAINING = "train"
# The file that a job leaves to those that need it, by kind.
FILES = {TRAINING: POLICY, "real-train": WEIGHTS, "probe": TOPOLOGY}
KINDS = {  # "module:function", which takes parameters and a `Workshop`
    "place": "doppler.reproduce.placements:place",
    "barriers": "doppler.reproduce.placements:with_barriers",
    TRAINING: "doppler.reproduce.learning:train",
    "judge": "doppler.reproduce.learning:judge",
    "untrained": "doppler.reproduce.learning:untrained",
    "real": "doppler.reproduce.learning:go_on_with_noise",
    "grow": "doppler.reproduce.experiments.growth:grow",
    "probe": "doppler.reproduce.experiments.real_work:probe_machine",
    "real-place": "doppler.reproduce.experiments.real_work:place",
    "real-train": "doppler.reproduce.experiments.real_work:train",
    "real-refine": "doppler.reproduce.experiments.real_work:refine",
    "real-measure": "doppler.reproduce.experiments.real_work:measure",
    "real-validate": "doppler.reproduce.experiments.real_work:validate_simulator",
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


class Tool:
    """Something that one job leaves open for the next, such as an engine with its inputs loaded."""

    def __init__(self) -> None:
        self._key, self._open = "", ExitStack()
        self._value: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def get(self, key: str, make: Callable[[], AbstractContextManager[Any]]) -> Any:
        """What was made for this key; if it was for another, that is closed and this one made."""
        if key != self._key:
            self._key = ""
            self._open.close()
            self._value, self._key = self._open.enter_context(make()), key
        return self._value


@dataclass(frozen=True, slots=True)
class Workshop:
    """The folder that jobs work in, and the job at hand."""

    folder: Path
    key: str = ""
    needs: tuple[str, ...] = ()  # keys of jobs that are done
    tool: Tool = field(default_factory=Tool)

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

    def get(self, job: PaperJob) -> Result | None:
        """That of a job, unless it was left undone."""
        return self.by_key.get(job.key)

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

    A job that is done is done again if another needs a file of it, and that is gone.
    """
    shop = Workshop(folder)
    left = {k: j for k, j in with_needs(jobs).items() if not shop.file(".json", k).exists()}
    asking = list(left.values())
    while asking:
        with_files = [job for job in asking.pop().needs if job.kind in FILES]
        for job in with_files:
            if job.key not in left and not shop.file(FILES[job.kind], job.key).exists():
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


@dataclass(slots=True)
class Leeway:
    """What may be left undone, where time is short."""

    until: float = inf  # by the clock `monotonic`, when no job is begun any more
    failures: dict[str, str] | None = None  # by key; None: the first failure is raised
    done: Callable[[PaperJob], None] = lambda _: None  # is called after every job


def run_jobs(
    jobs: Iterable[PaperJob],
    folder: Path,
    *,
    workers: int | None = None,
    leeway: Leeway | None = None,
) -> Results:
    """The results of jobs; those that are not there are done first, and kept as they come.

    Jobs that measure time run here, one by one, while nothing else does; all that they need, or
    that needs them, runs together before and after.
    """
    jobs = list(jobs)
    (folder / "jobs").mkdir(parents=True, exist_ok=True)
    left = missing(jobs, folder)
    together = sum(not job.alone for job in left)
    count = min(workers or num_workers(), max(together, 1))
    if left:
        with _Crew(left, folder, count if len(left) > 1 else 1, leeway or Leeway()) as crew:
            crew.work()
    shop, found = Workshop(folder), Results()
    for key in with_needs(jobs):
        result = shop.result(key)
        if result is None:
            assert leeway is not None
            continue
        found.by_key[key] = result
    return found


class _Crew:
    """Does jobs in the order that they need each other."""

    def __init__(
        self, left: Sequence[PaperJob], folder: Path, workers: int, leeway: Leeway
    ) -> None:
        self.queue, self.folder, self.workers, self.leeway = list(left), folder, workers, leeway
        self.total, self.done = len(left), 0
        self._open = ExitStack()
        self._pool: ProcessPoolExecutor | None = None
        self.tool = self._open.enter_context(Tool())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def work(self) -> None:
        """Together what may be, then alone what must be, again and again."""
        report("reproducing", 0, self.total)
        while self._ready():
            if self.workers > 1 and any(not job.alone for job in self._ready()):
                self._do_together()
            else:
                self._do_one()

    def _ready(self) -> list[PaperJob]:
        """Those that nothing undone is in the way of."""
        if monotonic() > self.leeway.until:
            self.queue.clear()
        waiting = {job.key for job in self.queue}
        return [j for j in self.queue if not any(need.key in waiting for need in j.needs)]

    def _do_one(self) -> None:
        """Do one job here; of those that measure time, one of the same graph as the last."""
        ready = self._ready()
        job = min(ready, key=lambda j: (j.alone, str(j.parameters.get("workload", ""))))
        self.queue.remove(job)
        place = _place_of(job, self.folder)
        self._ended(job, lambda: perform(job.kind, dict(job.parameters), *place, tool=self.tool))

    def _do_together(self) -> None:
        if self._pool is None:
            self._pool = self._open.enter_context(_make_pool(self.workers))
        running: dict[Future[None], PaperJob] = {}
        try:
            while True:
                under_way = {job.key for job in running.values()}
                for job in [j for j in self._ready() if not j.alone]:
                    if len(running) >= self.workers:
                        break
                    if any(need.key in under_way for need in job.needs):
                        continue
                    self.queue.remove(job)
                    place = _place_of(job, self.folder)
                    future = self._pool.submit(perform, job.kind, dict(job.parameters), *place)
                    running[future] = job
                if not running:
                    return
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    self._ended(running.pop(future), future.result)
        except BaseException:
            self._pool.shutdown(wait=False, cancel_futures=True)
            raise

    def _ended(self, job: PaperJob, result: Callable[[], None]) -> None:
        """Note that a job is done, or failed."""
        try:
            result()
        except Exception as error:
            if self.leeway.failures is None:
                raise
            self.leeway.failures[job.key] = f"{type(error).__name__}: {error}"
            lost = {job.key}
            for other in self.queue:  # all that needs it, by whatever way
                lost |= {other.key for need in with_needs([other]) if need in lost}
            self.queue = [other for other in self.queue if other.key not in lost]
            return
        self.done += 1
        report("reproducing", self.done, self.total)
        self.leeway.done(job)


def _make_pool(workers: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    started = context.Value("i", 0)
    return ProcessPoolExecutor(
        workers, mp_context=context, initializer=_take_core, initargs=(started,)
    )


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


def perform(
    kind: str,
    parameters: Result,
    folder: str,
    key: str,
    needs: tuple[str, ...],
    tool: Tool | None = None,
) -> None:
    """Do a job and write its result; without a `tool` for the jobs to come, none is left open."""
    module, _, name = KINDS[kind].partition(":")
    work: Callable[[Result, Workshop], Result] = getattr(import_module(module), name)
    with ExitStack() as own:
        shop = Workshop(Path(folder), key, needs, tool or own.enter_context(Tool()))
        result = work(parameters, shop)
    text = json.dumps({"kind": kind, "parameters": parameters, **result}, default=float)
    write_text(shop.file(".json"), text + "\n")
