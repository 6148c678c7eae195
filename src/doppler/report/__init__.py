"""Traces to look at: an HTML page of timelines, graph and causes, and files for Perfetto."""

from doppler.report.page import write_report
from doppler.report.perfetto import write_perfetto

__all__ = ["write_perfetto", "write_report"]
