"""Jobs: measurements by name, done one after the other, and a line of JSON for each result."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from doppler.placers.warm_up import warm_up_search

Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One measurement."""

    name: str  # table/case/…
    work: Callable[..., Result]
    seed: int = 0


def part_of(text: str) -> tuple[int, int]:
    """`0/16`: which of how many."""
    number, _, count = text.partition("/")
    if not 0 <= int(number) < int(count):
        raise ValueError(text)
    return int(number), int(count)


def run_jobs(
    jobs: Iterable[Job],
    patterns: Iterable[str],
    do: Callable[[Job], Result],
    results: Path,
    part: tuple[int, int] = (0, 1),
) -> None:
    """Do those of the jobs that match, this part of them, but for those with a result already.

    Each result becomes a line of the file at once. Where one fails the others go on, and the error
    comes last.
    """
    torch.set_num_threads(1)
    warm_up_search()
    done = read([results]) if results.exists() else {}
    wanted = [job for job in jobs if any(fnmatch(job.name, pattern) for pattern in patterns)]
    errors: list[Exception] = []
    for job in wanted[part[0] :: part[1]]:
        if job.name in done:
            continue
        try:
            found = do(job)
        except Exception as error:
            errors.append(error)
            print(job.name, repr(error), flush=True)
            continue
        line = {"job": job.name, "cores": len(os.sched_getaffinity(0))} | found
        with results.open("a") as file:
            file.write(json.dumps(line, default=float) + "\n")
        print(job.name, json.dumps(found, default=float), flush=True)
    if errors:
        raise ExceptionGroup(f"{len(errors)} jobs failed", errors)


def lines(paths: Iterable[Path]) -> Iterator[Result]:
    """All results in some files."""
    for path in paths:
        yield from map(json.loads, path.read_text().splitlines())


def read(paths: Iterable[Path]) -> dict[str, Result]:
    """Results by job; of the same job, the last."""
    return {result["job"]: result for result in lines(paths)}
