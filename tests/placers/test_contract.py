from collections.abc import Callable

import pytest

from doppler.placers import Placer, placer_names
from doppler.testing import PlacerContract


@pytest.mark.parametrize("name", [*placer_names(), "critical-path:blind"])
class TestEveryPlacer(PlacerContract):
    @pytest.fixture(autouse=True)
    def _named(self, name: str, quick: Callable[[str], Placer]) -> None:
        self.name, self.quick = name, quick

    def placer(self) -> Placer:
        return self.quick(self.name)
