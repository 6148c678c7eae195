"""The work-conserving engine: the scheduler's rules on real devices, in real time. Needs torch."""

from importlib.util import find_spec

from doppler.errors import MissingExtraError

if find_spec("torch") is None:
    raise MissingExtraError("torch", "running on real devices", extra="torch")
