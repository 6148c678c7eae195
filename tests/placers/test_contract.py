import pytest

from doppler.placers import Placer, make_placer, placer_names
from doppler.testing import PlacerContract


@pytest.mark.parametrize("name", placer_names())
class TestEveryPlacer(PlacerContract):
    @pytest.fixture(autouse=True)
    def _named(self, name: str) -> None:
        self.name = name

    def placer(self) -> Placer:
        return make_placer(self.name)
