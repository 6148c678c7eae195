"""Workflows of WfCommons, in and out."""

import json
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from strategies import edited, examples, graphs

from doppler.errors import DopplerError, FormatError, GraphError
from doppler.formats import graph_from_text, graph_to_text
from doppler.graph import Graph, build_graph

PARTED: dict[str, Any] = {
    "name": "two-steps",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {
                    "name": "split",
                    "id": "ID1",
                    "parents": [],
                    "children": ["ID2", "ID3"],
                    "inputFiles": ["in.txt"],
                    "outputFiles": ["chunk", "log"],
                },
                {"name": "work", "id": "ID2", "parents": ["ID1"], "inputFiles": ["chunk"]},
                {"name": "work", "id": "ID3", "parents": ["ID1"], "children": []},
            ],
            "files": [
                {"id": "in.txt", "sizeInBytes": 1024},
                {"id": "chunk", "sizeInBytes": 512},
                {"id": "log", "sizeInBytes": 5},
            ],
        },
        "execution": {
            "makespanInSeconds": 14.2,
            "executedAt": "2026-08-04T15:20:00-08:00",
            "tasks": [
                {"id": "ID1", "runtimeInSeconds": 4.5},
                {"id": "ID2", "runtimeInSeconds": 10},
                {"id": "ID3", "runtimeInSeconds": 1},
            ],
        },
    },
}
FLAT: dict[str, Any] = {
    "name": "flat",
    "schemaVersion": "1.4",
    "workflow": {
        "makespanInSeconds": 3,
        "tasks": [
            {
                "name": "split_1",
                "category": "split",
                "runtime": 4.5,
                "parents": [],
                "files": [
                    {"link": "input", "name": "in.txt", "size": 1024},
                    {"link": "output", "name": "chunk", "sizeInBytes": 512},
                ],
            },
            {
                "name": "work_2",
                "runtimeInSeconds": 10,
                "parents": ["split_1"],
                "files": [{"link": "input", "name": "chunk", "sizeInBytes": 512}],
            },
        ],
    },
}


def read(document: dict[str, Any]) -> Graph:
    return graph_from_text(json.dumps(document), "w.json", "w")


def described(graph: Graph) -> Any:
    """A graph whatever its numbers: seconds by name, tensors by makers, sizes and readers."""
    assert graph.exec_s is not None
    names = graph.vertex_names
    readers: dict[int, list[str]] = {t: [] for t in range(graph.num_tensors)}
    for t, reader in zip(graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True):
        readers[t].append(names[reader])
    tensors = sorted(
        (names[graph.tensor_producer[t]], float(graph.tensor_bytes[t]), sorted(found))
        for t, found in readers.items()
    )
    rows = zip(names, graph.kinds, graph.exec_s[:, 0].tolist(), strict=True)
    return sorted(rows), tensors


def test_what_is_specified_and_what_was_executed() -> None:
    graph = read(PARTED)
    assert graph.name == "two-steps"
    assert graph.vertex_names == ("ID1", "ID2", "ID3", "in.txt")
    assert graph.kinds == ("split", "work", "work", "input")
    assert described(graph)[1] == [
        ("ID1", 0.0, ["ID3"]),
        ("ID1", 5.0, []),
        ("ID1", 512.0, ["ID2"]),
        ("in.txt", 1024.0, ["ID1"]),
    ]


def test_tasks_with_all_in_one() -> None:
    graph = read(FLAT)
    assert graph.kinds == ("split", "work_2", "input")
    assert described(graph)[1] == [("in.txt", 1024.0, ["split_1"]), ("split_1", 512.0, ["work_2"])]


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    copy = deepcopy(document)
    *keys, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    inner: Any = copy
    for key in keys:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return copy


TASKS = "workflow.specification.tasks"


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("schemaVersion", "1.1", "`schemaVersion` is '1.1'"),
        ("workflow", [], "workflow must be an object"),
        ("workflow.execution", None, "tasks have no runtimes"),
        (f"{TASKS}.1.id", "ID9", "tasks[1]: task `ID9` is not in"),
        (f"{TASKS}.1.id", "ID1", "tasks[1]: there are two tasks `ID1`"),
        (f"{TASKS}.1.parents", ["nobody"], "tasks[1]: there is no parent `nobody`"),
        (f"{TASKS}.1.parents", [3], "tasks[1].parents[0] must be a text"),
        (f"{TASKS}.1.inputFiles", ["none"], "tasks[1]: file `none` is not in `files`"),
        (f"{TASKS}.1.outputFiles", ["chunk"], "`chunk` is written by `ID1` too"),
        (f"{TASKS}.0", 3, "tasks[0] must be an object"),
        ("workflow.specification.files.0.sizeInBytes", -1, "files[0].sizeInBytes must be a number"),
        ("workflow.execution.tasks.2.runtimeInSeconds", "x", "tasks[2].runtimeInSeconds must be"),
        ("workflow.execution.tasks.2.runtimeInSeconds", None, "`runtimeInSeconds` is missing"),
    ],
)
def test_mistakes_name_the_field(path: str, value: Any, why: str) -> None:
    with pytest.raises(FormatError) as error:
        read(changed(PARTED, path, value))
    assert why in str(error.value)


def test_a_link_that_is_none_and_a_cycle() -> None:
    with pytest.raises(FormatError, match="link is 'both'"):
        read(changed(FLAT, "workflow.tasks.0.files.0.link", "both"))
    with pytest.raises(GraphError, match="cycle"):
        read(changed(PARTED, f"{TASKS}.0.parents", ["ID2"]))


def test_a_file_that_is_changed_in_place() -> None:
    graph = read(changed(PARTED, f"{TASKS}.0.inputFiles", ["log"]))
    assert graph.num_vertices == 3


@pytest.mark.parametrize("document", [PARTED, FLAT])
def test_what_is_read_is_written_again(document: dict[str, Any]) -> None:
    graph = read(document)
    again = graph_from_text(graph_to_text(graph, "wfformat"), "again", "again")
    assert described(again) == described(graph)
    assert again.name == graph.name


@settings(max_examples=examples(90), deadline=None)
@given(graphs())
def test_any_graph_with_seconds_and_sizes_keeps_them(graph: Graph) -> None:
    columns = graph.columns() | {"transfer_s": None}
    if graph.transfer_s is not None:
        with pytest.raises(GraphError):
            graph_to_text(build_graph(**columns | {"transfer_s": graph.transfer_s}), "wfformat")
    seconds = [0.0 if kind == "input" else 0.25 * (v + 1) for v, kind in enumerate(graph.kinds)]
    made = [v for v, kind in enumerate(graph.kinds) if kind == "input"]
    outputs = [graph.output_ptr[v + 1] - graph.output_ptr[v] for v in made]
    is_read = set(graph.edge_tensor.tolist())
    graph = build_graph(**columns | {"exec_s": seconds})
    again = graph_from_text(graph_to_text(graph, "wfformat"), "again", "again")
    if all(count == 1 for count in outputs) and all(
        t in is_read for t in range(graph.num_tensors) if graph.tensor_producer[t] in made
    ):
        assert described(again) == described(graph)
    assert len(again.assigned) == len(graph.assigned)


@settings(max_examples=examples(150), deadline=None)
@given(edited(json.dumps(PARTED)))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(DopplerError):
        assert isinstance(graph_from_text(text, "w.json", "w", format_name="wfformat"), Graph)
