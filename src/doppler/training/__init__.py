"""Training: imitation, reinforcement on the simulator, and on the real system (Sec. 5)."""

from importlib.util import find_spec

from doppler.errors import MissingExtraError

if find_spec("torch") is None:
    raise MissingExtraError("torch", "training", extra="torch")
