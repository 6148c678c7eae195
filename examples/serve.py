"""Serve requests, and get faster while doing so.

Every request runs six small networks of unequal widths, whose outputs are added. On two
cores, dealt out round-robin, one core has most of the work. One request in five tries another
assignment; whichever is measurably faster takes over.

    python examples/serve.py
    python examples/serve.py --backend cuda --topology here.json --requests 5000
"""

# ruff: noqa: T201
import argparse
import logging
from time import perf_counter

import numpy as np

import doppler as dp
from doppler.programs import ProgramBuilder, binary, relu

WIDTHS = (1024, 256, 768, 512, 512, 256)
BATCH, FEATURES, CLASSES = 128, 256, 64
BLOCK = 50  # requests per line of output


def ensemble() -> dp.Program:
    """The sum of three-layer networks, one of each width."""
    b = ProgramBuilder("ensemble", dtype="float32")
    x, total = b.input("x", (BATCH, FEATURES)), None
    for n, width in enumerate(WIDTHS):
        h = relu((x @ b.input(f"w{n}.0", (FEATURES, width))).named(f"dense{n}.0"))
        for i in (1, 2):
            h = relu((h @ b.input(f"w{n}.{i}", (width, width))).named(f"dense{n}.{i}"))
        y = (h @ b.input(f"w{n}.3", (width, CLASSES))).named(f"dense{n}.3")
        total = y if total is None else binary("add", total, y, name=f"sum{n}")
    assert total is not None
    return b.build(total)


def main() -> None:
    """Serve requests, and print how long that took."""
    options = parse()
    if options.verbose:
        logging.basicConfig(level=logging.INFO)
    rng = np.random.default_rng(0)
    program, topology = ensemble(), dp.read_topology(options.topology)
    graph = dp.shard(program, parts=1)
    start = dp.place(graph, topology, "round-robin")
    inputs = {
        op.name: rng.standard_normal(op.shape, np.float32) / op.shape[0] ** 0.5
        for op in program.ops
        if op.kind == dp.OpKind.INPUT
    }
    with (
        dp.Engine(topology, options.backend) as engine,
        dp.OnlinePlacer(
            graph, engine, start, dp.OnlineConfig(explore=options.explore), state=options.state
        ) as online,
    ):
        print(f"{graph.num_vertices} vertices on {topology.name}, at first round-robin")
        began, block = perf_counter(), []
        for number in range(1, options.requests + 1):
            inputs["x"] = rng.standard_normal((BATCH, FEATURES), np.float32)
            block.append(online.serve(inputs).trace.makespan_s)
            if number % BLOCK == 0 or number == options.requests:
                now = online.status()
                print(
                    f"{number:6} requests  mean {np.mean(block) * 1e3:7.3f} ms  "
                    f"incumbent {now.incumbent_s * 1e3:7.3f} ± {now.spread_s * 1e3:.3f} ms  "
                    f"tried {now.promoted + now.dropped}, promoted {now.promoted}"
                )
                block = []
        share = now.explored / now.requests
        print(f"{perf_counter() - began:.0f} s; the incumbent takes {100 * now.gain:.1f} % less")
        print(f"exploring took {100 * share:.1f} % of requests, {100 * now.extra:+.2f} % of time")


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--backend", default="cpu", help="cpu, cuda or null")
    parser.add_argument("--topology", default="cpu2", help="name or file; `dop probe` writes one")
    parser.add_argument("--explore", type=float, default=0.2, help="share of the requests")
    parser.add_argument("--state", help="file to resume from, and to write")
    parser.add_argument("--verbose", action="store_true", help="log every promotion")
    return parser.parse_args()


if __name__ == "__main__":
    main()
