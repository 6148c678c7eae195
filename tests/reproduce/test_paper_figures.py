"""The paper's figures, and the presets that are fitted to them."""

import pytest

from doppler.placers import bounds_of
from doppler.reproduce.paper_figures import FOUR, MEASURED, least_measured, paper, where
from doppler.reproduce.placements import problem_of


def test_figures_are_those_of_the_paper() -> None:
    table = paper("placement")
    assert table["critical-path"]["ffnn"] == (217.8, 11.3)
    assert all(tuple(cells) == FOUR for cells in table.values())
    assert paper("messages")["passes-to-best"]["per-step"].mean == 963 * 112
    assert (where("placement"), where("machines")) == ("Table 2", "App. J")


def test_what_a_bound_must_not_exceed_is_of_any_table() -> None:
    assert least_measured("p100x4", "chainmm") == 119.6  # App. G.2
    assert least_measured("p100x4", "ffnn") == 46.0  # App. H.1
    assert least_measured("p100x4", "llama-block") == 159.4  # Table 4
    assert least_measured("v100x8", "chainmm") == 26.0  # App. J


@pytest.mark.parametrize("machine", MEASURED)
@pytest.mark.parametrize("graph", FOUR)
def test_no_bound_is_above_what_was_measured(machine: str, graph: str) -> None:
    bound_ms = bounds_of(problem_of(machine, graph)).best_s * 1e3
    assert bound_ms <= least_measured(machine, graph)


def test_the_first_fit_has_bounds_that_were_beaten() -> None:
    for machine, graph in (("p100x4", "llama-layer"), ("v100x8", "ffnn")):
        bound_ms = bounds_of(problem_of(f"{machine}-first-fit", graph)).best_s * 1e3
        assert bound_ms > least_measured(machine, graph)
