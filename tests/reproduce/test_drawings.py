"""Assignments, timelines and SEL's order are drawn by `dop reproduce`."""

from pathlib import Path

import numpy as np
import pytest

from doppler.reproduce.budgets import settings_of
from doppler.reproduce.findings import AssignmentDrawing, Finding, LineChart
from doppler.reproduce.jobs import PaperJob, Results
from doppler.reproduce.placements import problem_of
from doppler.reproduce.registry import experiment, find


def some_result(job: PaperJob) -> dict[str, object]:
    """What any job may come to: vertices on devices in turn."""
    graph = problem_of(job.parameters["machine"], job.parameters["graph"]).graph
    devices = np.where(graph.is_input, -1, np.arange(graph.num_vertices) % 4).tolist()
    placed = {"devices": devices, "ms": 1.0}
    order = [v for v in graph.topological_order.tolist() if not graph.is_input[v]]
    return placed | {"run": placed, "greedy": placed, "order": order}


def found(label: str) -> Finding:
    settings = settings_of(quick=True, executor="sim")
    one = experiment(label, settings)
    assert one is not None
    return find(label, settings, Results({job.key: some_result(job) for job in one.jobs()}))


@pytest.mark.parametrize(
    ("label", "graphs", "timelines"),
    [("assignments", 10, 0), ("utilization", 4, 4), ("selection-order", 5, 0)],
)
def test_labels_of_pictures_have_drawings(label: str, graphs: int, timelines: int) -> None:
    drawings = [c for c in found(label).charts if isinstance(c, AssignmentDrawing)]
    assert sum(not d.timeline for d in drawings) == graphs
    assert sum(d.timeline for d in drawings) == timelines


def test_the_order_is_drawn_step_by_step() -> None:
    steps = [c for c in found("selection-order").charts if isinstance(c, AssignmentDrawing)]
    placed = [sum(device >= 0 for device in d.devices) for d in steps]
    assert placed == [int(d.title.rpartition(" ")[2]) for d in steps] == [78, 86, 94, 146, 153]


def test_drawings_are_written_as_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from doppler.reproduce.plotting import write_charts

    drawn = found("utilization")
    kept = (drawn.charts[0], *drawn.charts[1:3])
    assert isinstance(kept[0], LineChart)
    written = write_charts(Finding("utilization", "", "", "", (), (), charts=kept), tmp_path)
    texts = [path.read_text("utf-8") for path in written]
    assert [path.name for path in written] == [f"utilization-{i}.svg" for i in range(3)]
    assert all("chainmm, doppler" in text for text in texts)
    assert len(set(texts)) == len(texts)
