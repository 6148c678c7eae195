"""Jobs of several processes, and cases to run in them."""

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from engine.running import machine
from hypothesis import given, settings
from hypothesis import strategies as st
from sharding.random_programs import cut_programs, whole_inputs
from tight import least_bytes

from doppler.assignment import Assignment
from doppler.errors import OutOfMemoryError
from doppler.problem import Problem
from doppler.scheduler.planning import plan_memory
from doppler.sharding import shard
from doppler.sharding.evaluate import evaluate_graph

ROOT = Path(__file__).parents[3]
LAUNCHER = Path(__file__).with_name("job.py")
MODES = ("dynamic", "fixed")

Case = dict[str, Any]


class Job(NamedTuple):
    """Cases for a number of processes."""

    size: int
    cases: Sequence[Case] = ()
    more: Case = {}


def run_jobs(folder: Path, *jobs: Job, timeout_s: float = 30.0) -> list[list[Any]]:
    """The outcomes of all cases of each job, by rank; None where a rank left none."""
    folders = [folder / str(number) for number in range(len(jobs))]
    for each, job in zip(folders, jobs, strict=True):
        each.mkdir(exist_ok=True)
        content = {"size": job.size, "cases": job.cases, "timeout_s": timeout_s} | job.more
        (each / "job.pickle").write_bytes(pickle.dumps(content))
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]),
    }
    subprocess.run([sys.executable, LAUNCHER, *folders], env=environment, timeout=300, check=True)
    return [
        [pickle.loads(f.read_bytes()) if f.exists() else None for f in files]
        for each, job in zip(folders, jobs, strict=True)
        for files in [[each / f"{rank}.pickle" for rank in range(job.size)]]
    ]


def random_case(data: st.DataObject, size: int) -> Case | None:
    """A random program on `size` devices, perhaps with just enough memory, or with a plan."""
    program, cuts = data.draw(cut_programs())
    graph = shard(program, 1, partitions=cuts)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    devices = np.where(graph.is_input, -1, rng.integers(size, size=graph.num_vertices))
    rooms = {name: data.draw(st.integers(1, 2)) for name in ("slots", "lanes")}
    topology = machine(size, **rooms, host_lanes=1)
    assignment, kind = Assignment(devices), data.draw(st.sampled_from(["free", "tight", "plan"]))
    if kind != "free":
        slack = data.draw(st.sampled_from([1.3, 2.0, 3.0]))
        limits = [slack * max(least_bytes(graph, devices, d), 256) for d in range(size)]
        pairs = zip(topology.devices, limits, strict=True)
        small = tuple(replace(device, memory_bytes=limit) for device, limit in pairs)
        topology = replace(topology, devices=small)
    if kind == "plan":
        try:
            assignment = plan_memory(Problem(graph, topology), assignment)
        except OutOfMemoryError:
            return None
    return {
        "graph": graph,
        "inputs": whole_inputs(program, data.draw(st.integers(0, 99))),
        "topology": topology,
        "assignment": assignment,
        "mode": data.draw(st.sampled_from(MODES)),
        "repeats": 2,
    }


def random_cases(size: int, examples: int) -> list[Case]:
    """Cases on `size` devices."""
    cases: list[Case] = []

    @settings(max_examples=examples, database=None, deadline=None)
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        if case := random_case(data, size):
            cases.append(case)

    collect()
    return cases


def check_outputs(jobs: Sequence[Job], found: Sequence[list[Any]]) -> int:
    """How many cases ran; what each computed is what numpy does, and the first rank has it."""
    ran = 0
    for job, outcomes in zip(jobs, found, strict=True):
        for case, (outputs, *rest), *others in zip(job.cases, *outcomes, strict=True):
            if outputs == "OutOfMemoryError" or "evicts a tensor on one rank" in str(rest):
                assert all(other[0] == outputs for other in others), (outputs, rest, others)
                continue
            ran += 1
            expected = evaluate_graph(case["graph"], case["inputs"])
            assert outputs.keys() == expected.keys(), rest
            for name, value in expected.items():
                assert np.array_equal(outputs[name], value, equal_nan=True), name
            assert all(other[0] == {} for other in others), others
            assert all(other[1] == rest[0] for other in others), (rest, others)
    return ran
