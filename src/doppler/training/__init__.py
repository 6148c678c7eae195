"""Training: imitation, reinforcement on the simulator, and on the real system (Sec. 5)."""

from importlib.util import find_spec

from doppler.errors import MissingExtraError

for _library in ("torch", "safetensors"):
    if find_spec(_library) is None:
        raise MissingExtraError(_library, "training", extra="torch")
