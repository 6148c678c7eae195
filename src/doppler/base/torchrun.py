"""What torchrun says about this process, found without torch."""

import os

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def num_ranks() -> int:
    """The processes that torchrun started, or 1."""
    if not all(name in os.environ for name in _TORCHRUN):
        return 1
    return int(os.environ["WORLD_SIZE"])


def is_first_rank() -> bool:
    """Whether this process is the one of a job that prints and writes files."""
    return num_ranks() == 1 or os.environ["RANK"] == "0"
