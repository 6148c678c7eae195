"""What does `dp.compile` cost on one device? Against the module itself, in the same run.

Modules run in turn as they are and compiled (forced, all on one CPU device), both on one thread.
The fastest run of each counts. The claims: at most 60 µs more per piece, and at most 1.05 times as
long where pieces take 2 ms or more on average.

    python benchmarks/overhead.py
"""

import argparse
import logging
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

import doppler as dp
from doppler.frontends.gallery import Decoder, make_example

Case = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def one_core() -> dp.Topology:
    """A machine of one CPU device."""
    core = dp.Topology.preset("cpu2").devices[0]
    return dp.Topology(name="one-core", devices=(core,), links=(), route=np.array([[-1]]))


def mlp(width: int, rows: int, layers: int = 8) -> Case:
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts).eval(), (torch.randn(rows, width),), {}


def decoder(width: int, tokens: int) -> Case:
    module = Decoder(layers=4, width=width, heads=8, groups=4).eval()
    return module, (torch.randint(0, 128, (1, tokens)),), {}


CASES: dict[str, Callable[[], Case]] = {
    "mlp, 64 wide": lambda: mlp(64, 8),
    "mlp, 1,024 wide": lambda: mlp(1024, 256),
    "decoder, 64 wide": lambda: make_example("decoder"),
    "decoder, 512 wide": lambda: decoder(512, 512),
    "dlrm": lambda: make_example("dlrm"),
    "unet": lambda: make_example("unet"),
}


def measure(case: Case, runs: int) -> tuple[int, float, float]:
    """Pieces, and the shortest times of the module and of the compiled one, in seconds."""
    module, args, kwargs = case
    config = dp.CompileConfig(placer="single", budget_s=None)
    fast = dp.compile(module, args, kwargs, topology=one_core(), config=config, force=True)
    assert fast.plan is not None, fast.explain()
    times: list[list[float]] = [[], []]
    with torch.no_grad():
        for call in (module, fast):
            call(*args, **kwargs)
        for _ in range(runs):
            for found, call in zip(times, (module, fast), strict=True):
                began = perf_counter()
                call(*args, **kwargs)
                found.append(perf_counter() - began)
    fast.close()
    return len(fast.plan.graph.assigned), min(times[0]), min(times[1])


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--runs", type=int, default=50)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| module | pieces | eager, ms | ms per piece | compiled, ms | ratio | µs more per piece |"
    )
    print("| --- " + "| ---: " * 6 + "|")
    for name in args.cases:
        pieces, eager_s, fast_s = measure(CASES[name](), args.runs)
        more_us, ratio = 1e6 * (fast_s - eager_s) / pieces, fast_s / eager_s
        print(f"| {name} | {pieces} | {1e3 * eager_s:.3f} | {1e3 * eager_s / pieces:.3f} | "
              f"{1e3 * fast_s:.3f} | {ratio:.2f} | {more_us:.0f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
