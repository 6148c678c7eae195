"""Columns of tasks: merged where there are too many, and compared with those of another trace."""

import numpy as np
from report.making import drawn, example

from doppler.report.task_columns import listed, merged, packed_columns, same_rows, task_columns


def test_merged_tasks_are_counted_and_the_critical_chain_stays() -> None:
    trace = drawn(1500)
    columns = task_columns(trace)
    chain = np.array([step.row for step in trace.critical_chain()])
    few, row = merged(columns, chain, 300)
    assert len(few.vertex) <= 320
    assert few.count.sum() == len(columns.vertex)
    assert few.bytes.sum() == columns.bytes.sum()
    assert (np.diff(few.begin_s) >= 0).all()
    assert (few.count[row[chain[: 300 // 8]]] == 1).all()
    for name in ("device", "link"):
        np.testing.assert_array_equal(getattr(few, name)[row], getattr(columns, name))
    assert (few.begin_s[row] <= columns.begin_s).all()
    assert (few.end_s[row] >= columns.end_s).all()
    assert few.before.max() < len(few.vertex)


def test_few_tasks_are_not_merged() -> None:
    columns = task_columns(drawn(10))
    same, row = merged(columns, np.zeros(0, np.int64), 1000)
    assert same is columns
    assert row.tolist() == list(range(20))


def test_the_rows_that_two_tables_share() -> None:
    _, _, _, traces = example()
    first, second, third = (packed_columns(task_columns(t), 1e-9) for t in traces.values())
    assert same_rows(first, first) == len(first["vertex"])
    same = same_rows(first, second)
    assert all((first[key][:same] == second[key][:same]).all() for key in first)
    assert any(first[key][same] != second[key][same] for key in first)
    assert len(listed(first, same)["begin"]) == len(first["begin"]) - same
    assert same_rows(first, third | {"count": third["vertex"]}) == 0
