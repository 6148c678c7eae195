"""Jobs on a real machine, here two shares of the cores: probed, trained for, run and shown."""

from dataclasses import replace
from pathlib import Path

import pytest

from doppler.reproduce.budgets import MINUTES, Settings
from doppler.reproduce.experiments.engines import graph_for
from doppler.reproduce.experiments.real_jobs import PLAIN, RealJobs
from doppler.reproduce.experiments.real_tables import RealPlacement, RealStages
from doppler.reproduce.findings import UNTESTED
from doppler.reproduce.jobs import Results, run_jobs, with_needs

pytest.importorskip("torch")

TINY = replace(
    MINUTES,
    imitation=32,
    seeds=1,
    samples=4,
    real=8,
    real_s=0.1,
    measure_s=0.1,
    train_s=dict.fromkeys(MINUTES.train_s, 0.2),
    search_s=0.1,
    probe_s=0.2,
    good=2,
    assignments=3,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


def test_a_column_of_table_two(folder: Path) -> None:
    table = RealPlacement(Settings(budgets=TINY, executor="cpu"))
    column = table.columns["chainmm"]
    measured = list(column.measured.values())
    results = run_jobs(measured, folder, workers=1)
    assert all(len(job.needs) == 1 + 5 + 3 + 1 for job in measured)
    for job in measured:
        found = results[job]
        assert not found["failures"]
        assert set(found["ms"]) == {name for name, _, _ in job.parameters["rows"]}
        assert all(2 <= len(ms) <= TINY.draws for ms in found["ms"].values())
    vertices = len(graph_for("chainmm", "cpu", small=True).assigned)
    trained = results[column.trained["doppler"][0]]
    assert all(len(trained[name]) == vertices for name in ("best", "greedy", "samples"))
    assert set(trained["predicted_ms"]) == {"best", "greedy", "samples"}
    tables, claims, _ = table.find(results)
    assert [t.heads[1:-1] for t in tables[:2]] == [("chainmm",)] * 2
    assert [row[0] for row in tables[0].rows][-2:] == ["doppler-sim", "doppler-sys"]
    assert all("–" not in row for row in tables[0].rows)
    assert not any(c.verdict == UNTESTED for c in claims)


def test_stages_share_trainings_with_table_two_and_runs_may_be_missing(folder: Path) -> None:
    settings = Settings(budgets=TINY, executor="cpu")
    stages = RealStages(settings)
    assert list(stages.runs) == ["I", "II", "III", "I+II", "I+III", "II+III", "I+II+III"]
    (both,) = stages.runs["I+II"]
    assert both.key == RealPlacement(settings).columns["llama-layer"].trained["doppler"][0].key
    jobs = RealJobs.of(settings)
    start = jobs.trained("chainmm", seed=0)
    refined = jobs.refined("chainmm", start, seed=0, form=PLAIN)
    rows = [("I+II+III, greedy/0", refined, "greedy"), ("III, greedy/0", both, "greedy")]
    measured = jobs.measured("chainmm", rows)
    needed = with_needs([refined])
    found = run_jobs(needed.values(), folder, workers=1)
    assert found[refined]["executions"] == TINY.real
    assert found[refined]["curve"][0][0] == TINY.real
    (stages.runs["I+II+III"][0],) = (refined,)
    tables, claims, charts = stages.find(Results({refined.key: found[refined]}))
    row = next(row for row in tables[0].rows if row[0] == "I+II+III")
    assert row[-2:] == (str(TINY.real), "1")
    assert tables[1].rows[0][0] == "I+II+III"
    assert all(c.verdict == UNTESTED for c in claims)
    assert len(charts) == 1
    assert stages.find(Results()) == ([], claims, [])
    assert measured.key != stages.measured.key


def test_how_well_the_simulator_predicts(folder: Path) -> None:
    jobs = RealJobs(TINY, "cpu")
    found = run_jobs([jobs.validated("chainmm")], folder, workers=1)
    result = found[jobs.validated("chainmm")]
    assert len(result["validation"]["measured_ms"]) == len(result["validation"]["predicted_ms"])
    assert all(len(row) == 3 for row in result["panel"]["rows"])
