"""What a report is made from: columns that say what the traces say."""

import json

import numpy as np
import pytest
from report.making import HOSTILE, example, hostile, large, planned

import doppler as dp
from doppler.errors import ConfigError, GraphError
from doppler.report.config import Detail, ReportConfig
from doppler.report.curves import Curve
from doppler.report.data import REASONS, report_data, trace_view
from doppler.report.page import report_html


def data_of(traces, graph=None, topology=None, config=None, **options):
    config = config or ReportConfig()
    options = {"assignments": {}, "lower_bounds_s": {}, "runs": {}, "detail": Detail()} | options
    made = {name: trace_view(trace, graph, config) for name, trace in traces.items()}
    return report_data(made, graph=graph, topology=topology, config=config, **options)


def test_times_come_back_to_a_ten_billionth() -> None:
    graph, _, _, traces = example()
    trace = traces["critical-path"]
    data = data_of(traces, graph)
    tasks, scale = data["traces"][0]["tasks"], data["traces"][0]["tick_s"]
    assert scale == trace.makespan_s / 10**10
    begin = np.cumsum(tasks["begin"])
    close = {"rtol": 0, "atol": scale}
    np.testing.assert_allclose(begin * scale, trace.begin_s, **close)
    np.testing.assert_allclose((begin + tasks["takes"]) * scale, trace.end_s, **close)
    np.testing.assert_allclose((begin - tasks["wait"]) * scale, trace.ready_s, **close)
    row = np.arange(len(begin))
    assert (row - tasks["after"]).tolist() == trace.after.tolist()
    steps = trace.waits()
    assert [REASONS[r] for r in tasks["reason"]] == [step.waited_for for step in steps]
    assert (row - tasks["before"]).tolist() == [step.before for step in steps]
    assert data["traces"][0]["chain"] == [step.row for step in trace.critical_chain()]


def test_traces_of_one_assignment_are_known() -> None:
    graph, _, assignments, traces = example()
    data = data_of(traces, graph, assignments=assignments, lower_bounds_s={"round-robin": 0.1})
    first, second, third = data["traces"]
    assert first["deviceOf"] == third["deviceOf"] != second["deviceOf"]
    assert first["deviceOf"] == assignments["critical-path"].devices.tolist()
    assert first["order"] == assignments["critical-path"].order.tolist()
    assert third["order"] is None
    assert [t["bound"] for t in data["traces"]] == [None, 0.1, None]
    assert len(data["vertices"]) == 1


def test_an_order_of_another_assignment_is_left_out() -> None:
    graph, _, assignments, traces = example()
    data = data_of(traces, graph, assignments={"round-robin": assignments["critical-path"]})
    assert data["traces"][1]["order"] is None


def test_a_graph_is_drawn_vertex_by_vertex_or_in_groups() -> None:
    graph, trace = large(300, 10)
    whole = data_of({"t": trace}, graph)["graph"]
    assert not whole["grouped"]
    assert len(whole["layer"]) == graph.num_vertices
    reads, producers = whole["reads"]
    readers = np.repeat(np.arange(graph.num_vertices), reads).tolist()
    pairs = set(zip(graph.tensor_producer[graph.edge_tensor], graph.edge_reader, strict=True))
    assert set(zip(producers, readers, strict=True)) == pairs
    groups = data_of({"t": trace}, graph, config=ReportConfig(max_vertices=100))["graph"]
    assert groups["grouped"]
    assert len(groups["nodeOf"]) == graph.num_vertices
    assert max(groups["nodeOf"]) + 1 == len(groups["nodeNames"]) == len(groups["layer"]) <= 100


def test_groups_are_meta_ops_where_there_are_some() -> None:
    graph, _, _, traces = example()
    view = data_of(traces, graph, config=ReportConfig(max_vertices=150))["graph"]
    named = {name for name, is_input in zip(graph.meta_ops, graph.is_input, strict=True) if name}
    assert named <= set(view["nodeNames"])


def test_names_are_visible_and_short() -> None:
    graph, topology, trace = hostile()
    text = json.dumps(data_of({HOSTILE[1]: trace}, graph, topology))
    assert "\\u202e" not in text.replace("\\\\u202e", "")
    assert "\\u001b" not in text
    assert "x" * 250 not in text


def test_machines_have_memory_and_bandwidth() -> None:
    graph, topology, _, traces = example()
    machine = data_of(traces, graph, topology)["machine"]
    assert machine["devices"]["gpu0"] == topology.devices[0].memory_bytes
    assert None not in machine["links"].values()
    assert set(data_of(traces, graph, dp.Topology.uniform(2))["machine"]["links"].values()) == {
        None
    }


def test_memory_is_within_what_a_device_has() -> None:
    graph, topology, trace = planned()
    (row,) = data_of({"planned": trace}, graph, topology)["traces"]
    peaks = [max(used) for used in row["memory"]["bytes"]]
    assert peaks == [use.peak_bytes for use in trace.memory(graph)]
    assert 0 < max(peaks) <= 4e6
    assert len(trace.devices) in row["tasks"]["device"]  # the host
    assert row["classBytes"]["host"] > 0
    assert "memory" not in data_of({"planned": trace})["traces"][0]


def test_mistakes() -> None:
    _, _, _, traces = example()
    other, _ = large(300, 10)
    with pytest.raises(GraphError, match="another graph"):
        data_of(traces, other)
    with pytest.raises(ConfigError, match="at least one"):
        report_html({})


def test_a_trace_without_tasks() -> None:
    graph = dp.GraphBuilder("empty").build()
    trace = dp.simulate(graph, "p100x4", dp.place(graph, "p100x4", "single"))
    data = data_of({"empty": trace}, graph)
    assert data["traces"][0]["tasks"]["begin"] == []
    assert data["graph"]["layer"] == []


def test_curves_are_thinned_and_keep_their_end() -> None:
    steps = tuple(range(1, 1002))
    values = tuple(float(step) for step in steps)
    curve = Curve("sim", "g@m", steps, values, values, (None, *values[1:]), 0.5)
    (run,) = data_of({}, runs={"r": [curve]}, config=ReportConfig(max_points=100))["runs"]
    (shown,) = run["curves"]
    assert len(shown["step"]) <= 101
    assert shown["step"][-1] == 1001
    assert shown["best_s"][0] is None
    assert shown["bound_s"] == 0.5
