"""Rows of tables say what they cost."""

import pytest

from doppler.reproduce.budgets import QUICK
from doppler.reproduce.job_rows import JobMaker, protocol_table
from doppler.reproduce.jobs import Results

pytest.importorskip("torch")


def test_budgets_count_stage_one_where_a_method_has_it() -> None:
    maker = JobMaker(QUICK)
    jobs = {method: maker.seeds("ffnn", method) for method in ("doppler", "placeto")}
    jobs["tuned"] = [maker.trained("ffnn", start=jobs["doppler"][0])]
    placed = {"ms": 1.0}
    results = Results(
        {
            job.key: {
                "parameters": dict(job.parameters),
                "greedy": placed,
                "run": placed,
                "samples_ms": 1.0,
                "evaluations": 7,
                "seconds": 1.0,
            }
            for row in jobs.values()
            for job in row
        }
    )
    table = protocol_table(results, QUICK, list(jobs.items()))
    column = table.heads.index("episodes")
    assert [row[column] for row in table.rows] == ["400 + 256", "400 + 0", "400 + 0"]
