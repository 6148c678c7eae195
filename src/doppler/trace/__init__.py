"""What happened when: a trace, how executors make one, its file."""

from doppler.trace.build import build_trace
from doppler.trace.io import FORMAT, read_trace, trace_from_json, trace_to_json, write_trace
from doppler.trace.trace import Trace

__all__ = [
    "FORMAT",
    "Trace",
    "build_trace",
    "read_trace",
    "trace_from_json",
    "trace_to_json",
    "write_trace",
]
