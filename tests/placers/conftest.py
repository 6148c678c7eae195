from collections.abc import Callable

import pytest

from doppler.placers import Placer, make_placer
from doppler.placers.auto import AutoPlacer
from doppler.placers.exact.placer import ExactPlacer
from doppler.placers.learned.config import NeighbourhoodConfig
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.placers.search.annealing import AnnealingPlacer, LocalSearchPlacer, SearchConfig
from doppler.placers.search.genetic import GeneticConfig, GeneticPlacer

QuickPlacer = Callable[[str], Placer]

LEARNED = DopplerPlacer(samples=32, search=NeighbourhoodConfig(polishing_work=100_000))
# Placers that search as long as they may, with budgets that make them repeat.
BUDGETED: dict[str, Callable[[], Placer]] = {
    "annealing": lambda: AnnealingPlacer(SearchConfig(evaluations=300, chains=2)),
    "auto": lambda: AutoPlacer(0.8, evaluations=300, learned=LEARNED),
    "cp-sat": lambda: ExactPlacer(seconds=0.4),
    "doppler": lambda: LEARNED,
    "genetic": lambda: GeneticPlacer(GeneticConfig(generations=2, population=16)),
    "local-search": lambda: LocalSearchPlacer(SearchConfig(evaluations=300, hot=0.0, chains=1)),
}


@pytest.fixture
def quick() -> QuickPlacer:
    """Makes a placer by its name that takes no long time."""
    return lambda name: BUDGETED[name]() if name in BUDGETED else make_placer(name)
