"""Training: imitation, then reinforcement on the simulator (Sec. 5). Needs torch."""

from importlib.util import find_spec

from doppler.errors import MissingExtraError

for _library in ("torch", "safetensors"):
    if find_spec(_library) is None:
        raise MissingExtraError(_library, "training", extra="torch")
