"""How a view behaves."""

from dataclasses import dataclass, field

from doppler.report.config import ReportConfig
from doppler.sim import SimConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewConfig:
    """Limits of a view and of its server."""

    report: ReportConfig = field(default_factory=ReportConfig)
    simulation: SimConfig = field(default_factory=SimConfig)
    max_undo: int = 200  # changes that can be taken back
    max_factor: float = 1e3  # times faster or slower than given that a device or link may be
    max_body_bytes: int = 4_000_000  # of a request
    timeout_s: float = 30.0  # of a connection on which nothing happens
    poll_s: float = 2.0  # between two questions of a page: is there anything new?
