"""Memory plans as values: checks, files, and the tasks that they add."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tight import tight_problem

from doppler.assignment import (
    Assignment,
    assignment_document,
    read_assignment,
    write_assignment,
)
from doppler.base.files import to_json
from doppler.errors import AssignmentError, FormatError, OutOfMemoryError, WrongTypeError
from doppler.graph import Graph, GraphBuilder
from doppler.memory_plan import MemoryPlan
from doppler.scheduler.planning import plan_memory
from doppler.tasks import dependencies, enumerate_tasks, task_levels, task_table, with_moves
from doppler.topology import Topology

MACHINE = Topology.uniform(2, memory_bytes=100.0, host_bandwidth_bytes_per_s=1.0)


def pair() -> Graph:
    """A weight and a vertex on device 0, two readers of it, one on each device."""
    builder = GraphBuilder("pair")
    weight = builder.input("w", output_bytes=4.0, kind="resident")
    made = builder.op("a", "matmul", reads=[weight], output_bytes=2.0, exec_s=1.0)
    builder.op("b", "matmul", reads=[made, weight], output_bytes=1.0, exec_s=1.0)
    builder.op("c", "matmul", reads=[made], output_bytes=1.0, exec_s=1.0)
    return builder.build()


DEVICES = np.array([-1, 0, 0, 1])
# Evict what `a` makes (tensor 1) from device 0, load it there for `b`; load `w` for `b` too.
PLAN: dict[str, Any] = {
    "tensor": [1, 1, 0],
    "device": [0, 0, 0],
    "is_load": [False, True, True],
    "ptr": [0, 0, 1, 2],
    "user": [2, 2],
    "needed": [4],
    "needs": [6],
}


def test_moves_are_tasks_behind_the_transfers() -> None:
    graph, plan = pair(), MemoryPlan(**PLAN)
    tasks = with_moves(MACHINE, enumerate_tasks(graph, MACHINE, DEVICES), plan)
    assert tasks.tensor.tolist() == [1, 1, 1, 0]
    assert tasks.source.tolist() == [0, 0, 2, 2]  # 2 is the host
    assert tasks.target.tolist() == [1, 2, 0, 0]
    assert tasks.link.tolist() == [0, 2, 2, 2]
    table = task_table(graph, MACHINE, tasks, plan=plan)
    assert table.tasks == [1, 2, 3, 4, 5, 6, 7]
    assert table.needs[1:] == [[], [7, 6], [4], [1], [1], [5, 4], []]
    assert repr(plan) == "<MemoryPlan: 1 eviction, 2 loads>"
    assert plan.moved_bytes(graph) == (2.0, 6.0)
    Assignment(DEVICES, memory=plan).check(graph, MACHINE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor": [0, 1, 0]}, "evicts tensor 0, an input"),
        ({"tensor": [9, 1, 0]}, "`tensor` of the memory plan holds 9"),
        ({"device": [1, 0, 5]}, "`device` of the memory plan holds 5"),
        ({"tensor": [2, 1, 0], "device": [1, 0, 0]}, "evicts tensor 2 from device 1"),
        ({"tensor": [2, 1, 0]}, "loads tensor 1, which no move brings"),
        ({"user": [1, 2]}, "loads tensor 1 for task 1, which does not read it"),
        ({"user": [2, 3]}, "loads tensor 0 for task 3, which does not read it"),
        ({"needed": [0]}, "`needed` of the memory plan holds 0"),
        ({"needs": [12]}, "`needs` of the memory plan holds 12"),
        ({"needed": [6], "needs": [1]}, "form a cycle"),
        ({"ptr": [0, 0, 2, 2]}, "move 2 of the memory plan is a load without users"),
        ({"ptr": [0, 1, 1, 2]}, "move 0 of the memory plan is an eviction to read"),
        ({"ptr": [0, 0, 2, 1]}, "`ptr` of a memory plan does not count"),
        ({"needs": []}, "`needs` of a memory plan has 0 entries, expected 1"),
        ({"is_load": [0, 1, 1]}, "`is_load` of a memory plan is not a column of truth values"),
        ({"tensor": [[1]]}, "`tensor` of a memory plan is not a column of whole numbers"),
    ],
)
def test_what_is_inconsistent_is_said(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AssignmentError, match=message):
        Assignment(DEVICES, memory=MemoryPlan(**PLAN | changes)).check(pair(), MACHINE)


def test_a_tensor_is_evicted_once_and_loaded_once_for_a_task() -> None:
    evicted_twice = PLAN | {"is_load": [False, False, True], "ptr": [0, 0, 0, 1], "user": [2]}
    with pytest.raises(AssignmentError, match="which the host has from an earlier eviction"):
        MemoryPlan(**evicted_twice).check(
            pair(), MACHINE, enumerate_tasks(pair(), MACHINE, DEVICES)
        )
    twice = PLAN | {"tensor": [1, 0, 0]}
    with pytest.raises(AssignmentError, match="for task 2, which has it already"):
        Assignment(DEVICES, memory=MemoryPlan(**twice)).check(pair(), MACHINE)


def test_a_plan_needs_links_to_the_host() -> None:
    with pytest.raises(AssignmentError, match="over links to the host, and topology `uniform`"):
        Assignment(DEVICES, memory=MemoryPlan(**PLAN)).check(pair(), Topology.uniform(2))
    with pytest.raises(WrongTypeError, match="memory"):
        Assignment(DEVICES, memory="a plan")  # type: ignore[arg-type]


def test_files_keep_plans(tmp_path: Path) -> None:
    for seed in range(40):
        problem, assignment = tight_problem(seed)
        try:
            found = plan_memory(problem, assignment)
        except OutOfMemoryError:
            continue
        write_assignment(found, tmp_path / "found.json", force=True)
        read = read_assignment(tmp_path / "found.json")
        assert read == found
        assert read.memory == found.memory
        assert read != replace(found, memory=None)
        read.check(problem.graph, problem.topology)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor": [1.5]}, "`tensor` must be a list of whole numbers"),
        ({"is_load": [0, 1, 1]}, "`is_load` must be a list of truth values"),
        ({"ptr": [0]}, "`ptr` of a memory plan has 1 entries, expected 4"),
        ({"extra": []}, "extra"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    document = assignment_document(Assignment(DEVICES, memory=MemoryPlan(**PLAN)))
    document["memory"] |= changes
    path = tmp_path / "wrong.json"
    path.write_text(to_json(document))
    with pytest.raises(FormatError, match=message):
        read_assignment(path)


def test_levels() -> None:
    needed, needs = np.array([0, 1, 0]), np.array([1, 2, 2])
    levels = task_levels(needed, needs, 4)
    assert levels is not None
    assert levels.tolist() == [0, 1, 2, 0]
    assert task_levels(np.array([0, 1]), np.array([1, 0]), 2) is None
    tasks = enumerate_tasks(pair(), MACHINE, DEVICES)
    assert task_levels(*dependencies(pair(), tasks), 5) is not None
