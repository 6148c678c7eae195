"""Every table and figure of the paper has a label, and every learned row has seeds."""

from pathlib import Path

import pytest

from doppler.errors import UnknownNameError
from doppler.reproduce.budgets import SEC_6_1, Budgets, settings_of
from doppler.reproduce.findings import UNTESTED
from doppler.reproduce.jobs import PaperJob, Results, estimate_s, with_needs
from doppler.reproduce.registry import LABELS, chosen, experiment, find, jobs_of, reproduce

QUICK_S = 30 * 60  # on two cores


@pytest.fixture(scope="module")
def quick() -> list[PaperJob]:
    return list(with_needs(jobs_of(list(LABELS), settings_of(quick=True, executor="sim"))).values())


def test_labels_are_in_the_papers_order_and_mistakes_are_told() -> None:
    assert chosen(["all"]) == chosen(["machines", "all"]) == list(LABELS)
    assert chosen(["seeds", "placement"]) == ["placement", "seeds"]
    with pytest.raises(UnknownNameError, match="no label named `placements`"):
        chosen(["placements"])
    with pytest.raises(UnknownNameError, match="no executor named `gpu`"):
        settings_of(quick=True, executor="gpu")


def test_full_budgets_are_those_of_the_paper() -> None:
    budgets = Budgets()
    assert dict(budgets.episodes) == SEC_6_1
    assert (budgets.shots, budgets.machine_shots, budgets.more_seeds) == ((2000, 4000), 2000, 5)


def test_the_quick_run_is_estimated_below_half_an_hour_on_two_cores(quick: list[PaperJob]) -> None:
    assert estimate_s(quick, 2) < QUICK_S


def test_every_training_has_at_least_two_seeds_and_a_budget(quick: list[PaperJob]) -> None:
    seeds: dict[str, set[int]] = {}
    for job in quick:
        if job.kind not in ("train", "real"):
            continue
        values = {k: v for k, v in job.parameters.items() if k not in ("seed", "start")}
        assert values["real" if job.kind == "real" else "episodes"] > 0
        seeds.setdefault(str(sorted(values.items(), key=str)), set()).add(job.parameters["seed"])
    assert seeds
    assert min(map(len, seeds.values())) >= 2


def test_the_full_recipe_has_every_method_with_three_seeds() -> None:
    jobs = with_needs(jobs_of(list(LABELS), settings_of(quick=False, executor="sim"))).values()
    on_p100 = [
        (j.parameters["method"], j.parameters["graph"], j.parameters["seed"])
        for j in jobs
        if j.kind == "train"
        and (j.parameters["machine"], j.parameters["preset"]) == ("p100x4", "paper")
        and not j.parameters["variant"]
        and j.parameters["episodes"] == SEC_6_1[j.parameters["graph"]]
    ]
    for method in ("doppler", "placeto", "gdp"):
        for graph in SEC_6_1:
            assert {s for m, g, s in on_p100 if (m, g) == (method, graph)} >= {0, 1, 2}


def test_a_real_executor_is_for_some_labels_only() -> None:
    settings = settings_of(quick=True, executor="cpu")
    assert {name for name in LABELS if experiment(name, settings) is not None} == {
        "blocking",
        "placement",
        "sim-vs-real",
        "stages",
    }
    jobs = with_needs(jobs_of(list(LABELS), settings)).values()
    timed = {"probe", "real-refine", "real-measure", "real-validate"}
    assert {job.kind for job in jobs if job.alone} == timed
    assert {job.kind for job in jobs if not job.alone} == {"real-place", "real-train"}
    assert sum(job.kind == "probe" for job in jobs) == 4  # labels share them
    found = find("seeds", settings, Results())
    assert found.verdict == UNTESTED
    assert "--executor sim" in found.claims[0].reason


def test_blocking_compares_the_same_assignment(tmp_path: Path) -> None:
    settings = settings_of(quick=True, executor="sim")
    (found,) = reproduce(["blocking"], settings, tmp_path, workers=1)
    assert [row[0] for row in found.tables[0].rows] == ["chainmm", "ffnn"]
    assert [c.verdict for c in found.claims] == ["holds", UNTESTED]
    assert (found.settings["budget"], found.settings["executor"]) == ("quick", "sim")
    assert reproduce(["blocking"], settings, tmp_path, workers=1) == [found]
