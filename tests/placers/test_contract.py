import pytest

from doppler.placers import Placer, make_placer, placer_names
from doppler.placers.auto import AutoPlacer
from doppler.placers.exact import ExactPlacer
from doppler.placers.genetic import GeneticConfig, GeneticPlacer
from doppler.placers.search import AnnealingPlacer, LocalSearchPlacer, SearchConfig
from doppler.testing import PlacerContract

# Placers that search as long as they may, with budgets that make them repeat.
BUDGETED = {
    "annealing": lambda: AnnealingPlacer(SearchConfig(evaluations=300, chains=2)),
    "auto": lambda: AutoPlacer(evaluations=300),
    "cp-sat": lambda: ExactPlacer(seconds=0.4),
    "genetic": lambda: GeneticPlacer(GeneticConfig(generations=2, population=16)),
    "local-search": lambda: LocalSearchPlacer(SearchConfig(evaluations=300, hot=0.0, chains=1)),
}


@pytest.mark.parametrize("name", placer_names())
class TestEveryPlacer(PlacerContract):
    @pytest.fixture(autouse=True)
    def _named(self, name: str) -> None:
        self.name = name

    def placer(self) -> Placer:
        return BUDGETED[self.name]() if self.name in BUDGETED else make_placer(self.name)
