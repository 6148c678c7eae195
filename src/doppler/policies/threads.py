"""How many cores torch computes on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one core inside.

    Policies are small: threads save little, and where cores are busy their waiting for each other
    takes a hundred times as long as the work. One thread also sums in one order on all machines.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
