"""What makes a GPU ready for a run: its clock, and libraries that load when they are first used."""

from time import perf_counter
from typing import Any

import torch


def tick(event: Any, stream: torch.cuda.Stream) -> tuple[float, Any, float]:
    """An event, and when it was: how uncertain that is, and the middle of the interval."""
    before = perf_counter()
    event.record(stream)
    event.synchronize()
    after = perf_counter()
    return after - before, event, (before + after) / 2


def run_something(output: torch.Tensor) -> None:
    """Products and sums in two dtypes, to have cuBLAS and its workspace ready on a stream."""
    output.fill_(1.0)
    half = output.to(torch.float16)
    output.add_(output @ output)
    half.add_(half @ half)
