"""Perfetto files: valid trace events, every task and every dependency among them."""

import json
from pathlib import Path

import pytest
from report.making import HOSTILE, example, hostile, large, planned
from report.trace_events import check_document

import doppler as dp
from doppler.errors import ConfigError, GraphError, OutputError
from doppler.tasks import dependencies, enumerate_tasks


def written(tmp_path: Path, traces, **options):
    path = tmp_path / "x.perfetto.json"
    dp.write_perfetto(traces, path, **options)
    document = json.loads(path.read_text("utf-8"))
    check_document(document)
    return document["traceEvents"]


def of(events, phase):
    return [event for event in events if event["ph"] == phase]


def test_every_task_is_a_slice(tmp_path: Path) -> None:
    graph, _, _, traces = example()
    trace = traces["critical-path"]
    events = written(tmp_path, {"one": trace}, graph=graph)
    slices = of(events, "X")
    assert [s["ts"] / 1e6 for s in slices] == pytest.approx(trace.begin_s.tolist())
    assert [s["dur"] / 1e6 for s in slices] == pytest.approx((trace.end_s - trace.begin_s).tolist())
    assert [s["args"]["vertex"] for s in slices] == trace.vertex.tolist()
    assert sum(s["args"]["critical"] for s in slices) == len(trace.critical_chain())
    places = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    for row, one in enumerate(slices):
        at = trace.links[trace.link[row]] if trace.is_transfer[row] else None
        assert places[one["pid"]] == (at or trace.devices[trace.device[row]]).name


def test_arrows_are_the_dependencies(tmp_path: Path) -> None:
    graph, topology, assignments, traces = example()
    tasks = enumerate_tasks(graph, topology, assignments["critical-path"].devices)
    needed, _ = dependencies(graph, tasks)
    events = written(tmp_path, {"one": traces["critical-path"]}, graph=graph)
    assert len(of(events, "s")) == len(of(events, "f")) == len(needed)


def test_without_a_graph_arrows_come_from_the_last_input(tmp_path: Path) -> None:
    trace = example()[3]["critical-path"]
    events = written(tmp_path, {"one": trace})
    assert len(of(events, "s")) == int((trace.after >= 0).sum())


def test_counters_are_percent_of_utilization(tmp_path: Path) -> None:
    trace = example()[3]["critical-path"]
    counters = of(written(tmp_path, {"one": trace}), "C")
    values = [c["args"]["percent"] for c in counters]
    assert 0 <= min(values) <= max(values) <= 100
    assert len({c["pid"] for c in counters}) == len(trace.devices)


def test_counters_of_memory_in_use(tmp_path: Path) -> None:
    graph, _, trace = planned()
    counters = of(written(tmp_path, {"p": trace}, graph=graph), "C")
    for device, use in enumerate(trace.memory(graph)):
        own = [c for c in counters if c["name"] == "memory" and c["pid"] == 1 + device]
        assert [c["args"]["bytes"] for c in own] == use.used_bytes.tolist()
        assert [c["ts"] / 1e6 for c in own] == pytest.approx(use.time_s.tolist())
    assert {c["name"] for c in of(written(tmp_path, {"p": trace}), "C")} == {"utilization"}


def test_traces_have_processes_of_their_own(tmp_path: Path) -> None:
    graph, _, _, traces = example()
    events = written(tmp_path, traces, graph=graph)
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert len(names) == len(set(names))
    assert {"critical-path: gpu0", "measured: gpu0"} <= set(names)


def test_odd_and_large_traces(tmp_path: Path) -> None:
    _, _, trace = hostile()
    path = tmp_path / "x.perfetto.json"
    assert len(of(written(tmp_path, {HOSTILE[3]: trace}), "X")) == len(trace.vertex)
    assert path.read_text("utf-8").replace("\n", "").isprintable()
    graph, trace = large(300, 10)
    assert len(of(written(tmp_path, {"l": trace}, graph=graph), "X")) == len(trace.vertex)
    graph, _, trace = planned()
    assert len(of(written(tmp_path, {"p": trace}, graph=graph), "X")) == len(trace.vertex)
    empty = dp.GraphBuilder("empty").build()
    none = dp.simulate(empty, "p100x4", dp.place(empty, "p100x4", "single"))
    assert of(written(tmp_path, {"none": none}), "X") == []


def test_mistakes(tmp_path: Path) -> None:
    trace = example()[3]["critical-path"]
    with pytest.raises(ConfigError, match="at least one"):
        dp.write_perfetto({}, tmp_path / "x.json")
    with pytest.raises(GraphError, match="of another graph"):
        dp.write_perfetto({"one": trace}, tmp_path / "x.json", graph=hostile()[0])
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(OutputError):
        dp.write_perfetto({"one": trace}, tmp_path / "x.json")
