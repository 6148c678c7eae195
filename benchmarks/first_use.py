"""How long `dop place` takes when nothing is compiled yet, and the second time.

Every command runs twice in processes of its own on a new, empty cache of kernels. Seconds of the
processors are of the command and of the process that compiles beside it; on a busy machine they
tell more than the seconds by the clock.

    python benchmarks/first_use.py
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

GRAPH = ("shard", "llama-block", "--parts", "4")
COMMANDS = {
    "one heuristic": ("--placer", "heft"),
    "policy": ("--placer", "doppler"),
    "all, for 1 s": ("--placer", "auto", "--budget", "1"),
}


def main() -> None:
    """Print a row for each command."""
    print(f"{'':16}{'first use':>24}{'second use':>24}{'ratio':>8}")
    print(f"{'':16}" + f"{'clock s':>12}{'processor s':>12}" * 2)
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder, "graph.json")
        timed(Path(folder, "cache"), *GRAPH, "-o", str(graph))
        for name, options in COMMANDS.items():
            cache = Path(folder, name)
            arguments = ("place", str(graph), "--topology", "p100x4", "--json", *options)
            first, second = timed(cache, *arguments), timed(cache, *arguments)
            numbers = "".join(f"{number:12.1f}" for number in (*first, *second))
            print(f"{name:16}{numbers}{first[0] / second[0]:8.1f}", flush=True)


def timed(cache: Path, *arguments: str) -> tuple[float, float]:
    """Seconds by the clock, and of the processors, that `dop` takes with these arguments."""
    before, began = processor_s(), perf_counter()
    subprocess.run(
        [sys.executable, "-m", "doppler", *arguments],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return perf_counter() - began, processor_s() - before


def processor_s() -> float:
    """Seconds of the processors that child processes have taken so far, and theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
