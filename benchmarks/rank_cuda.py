"""Two processes that share a GPU: whether they compute what one does, and what crossing costs.

    python benchmarks/rank_cuda.py run rank-cuda.jsonl [--seconds 115]
    python benchmarks/rank_cuda.py show rank-cuda.jsonl

Each step is a job of two processes, or one, with a time limit of its own; every row is written as
soon as it is known, and what fails or hangs costs no other step.

- `gloo`: random programs, FFNN and ChainMM on four parts of the GPU, two for each process, in both
  modes; outputs are compared with those of one process that has all four.
- `times`: a chain of additions goes to and fro between two parts, in one process and in two. Shown
  are microseconds per hop, the 10th percentile, and gloo's own copy between the same processes.
- `nccl …`: the outputs again, over NCCL. It refuses two processes on one GPU; newer versions may be
  told to allow it (`NCCL_MULTI_RANK_GPU_ENABLE`), and all take processes with different
  `NCCL_HOSTID` for different hosts, which they join over sockets.
- `nccl alone`: one process, to see that NCCL itself works, and its version.
"""

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from ranks import CHAINS, chain, copies_us, runs_us

import doppler as dp
from doppler.engine.config import EngineConfig
from doppler.engine.engine import Engine
from doppler.engine.ranks.group import Group
from doppler.engine.ranks.rank_engine import RankEngine
from doppler.programs import ProgramBuilder, random_inputs, relu
from doppler.topology import Device, Link, Topology

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24)
HOPS, ROUNDS, RUNS = 40, 2, 6
LONG, FEW_HOPS = 1 << 24, 10
PROGRAMS = 6
AFTER_S = 6.0  # that processes have when another of their step has failed
SOCKETS = {
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
}
# Name, processes, seconds at most, what they do, environment (`{rank}` is the rank).
STEPS: tuple[tuple[str, int, float, str, dict[str, str]], ...] = (
    ("gloo", 2, 45, "outputs", {}),
    ("times", 2, 45, "times", {}),
    ("nccl, several ranks", 2, 25, "nccl", {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}),
    ("nccl, two hosts", 2, 30, "nccl", {"NCCL_HOSTID": "rank{rank}", **SOCKETS}),
    ("nccl", 2, 20, "nccl", {}),
    ("nccl alone", 1, 20, "alone", {}),
)


def machine(parts: int) -> Topology:
    """Equal parts of GPU 0, with links through the host."""
    speeds = {"float16": 1e13, "float32": 1e13, "float64": 1e12}
    where = [f"cuda:0/{i}of{parts}" for i in range(parts)]
    devices = tuple(Device(f"d{i}", speeds, 1e12, address=a) for i, a in enumerate(where))
    route = np.repeat(np.arange(parts)[:, None], parts, axis=1)
    np.fill_diagonal(route, -1)
    links = tuple(Link(f"from{i}", 2e10, lanes=2, via="host") for i in range(parts))
    return Topology(f"parts{parts}", devices, links, route)


def random_program(seed: int) -> dp.Program:
    """Some products, sums and maxima of square matrices, each of earlier ones."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([32, 96, 256]))
    builder = ProgramBuilder(f"random{seed}")
    values = [builder.input(f"x{i}", (size, size), dtype="float32") for i in range(3)]
    for _ in range(8):
        a, b = (values[int(i)] for i in rng.integers(len(values), size=2))
        what = rng.integers(3)
        values.append(relu(a) + b if what == 0 else (a @ b) if what == 1 else a + b)
    return builder.build(values[-1] + values[-2])


def programs() -> dict[str, tuple[dp.Program, int]]:
    """Programs by name, and the parts into which they are cut."""
    found = {f"random {seed}": (random_program(seed), 1 << seed % 3) for seed in range(PROGRAMS)}
    sizes: Any = {"batch": 256, "features": 64, "hidden": 512, "classes": 64}
    found["ffnn"] = (dp.programs.ffnn(**sizes, dtype="float32"), 4)
    found["chainmm"] = (dp.programs.chainmm(size=512, dtype="float32"), 4)
    return found


def check_outputs(group: Group, modes: tuple[str, ...], transport: str, write: Any) -> None:
    """Compare the outputs of all ranks with those of one process, by program and mode."""
    topology, size = machine(4), 4
    for mode in modes:
        config = EngineConfig(mode=mode, transport=transport, timeout_s=15.0)
        ranks = RankEngine(topology, group, config, "cuda")
        alone = Engine(topology, "cuda", EngineConfig(mode=mode)) if group.rank == 0 else None
        for name, (program, parts) in programs().items():
            graph, inputs = dp.shard(program, parts=parts), random_inputs(program, seed=1)
            devices = np.random.default_rng(0).integers(size, size=graph.num_vertices)
            assignment = dp.Assignment(np.where(graph.is_input, -1, devices))
            result = ranks.execute(graph, assignment, inputs, repeats=3)
            if alone is None:
                continue
            expected = alone.execute(graph, assignment, inputs, repeats=3)
            crossing = result.trace.is_transfer.sum()
            worst = max(
                float(np.abs(result.outputs[key] - value).max() / max(np.abs(value).max(), 1e-9))
                for key, value in expected.outputs.items()
            )
            row = {"program": name, "mode": mode, "transport": transport, "error": worst}
            row |= {"equal": worst < 1e-4, "vertices": len(graph.assigned)}
            row |= {"transfers": int(crossing), "one_s": expected.makespans_s.min()}
            write(row | {"two_s": result.makespans_s.min()})
        if alone is not None:
            alone.close()
        ranks.close()


def measure_times(group: Group, write: Any) -> None:
    """Microseconds per hop, in one process and in two, by size and mode."""
    topology = machine(2)
    for mode in ("dynamic", "fixed"):
        config = EngineConfig(mode=mode, timeout_s=15.0)
        ranks = RankEngine(topology, group, config, "cuda")
        alone = Engine(topology, "cuda", config) if group.rank == 0 else None
        for size in SIZES:
            hops, rows = HOPS if size < LONG else FEW_HOPS, defaultdict[str, list[float]](list)
            graph = chain(hops, size)
            rows["copy"] += copies_us(group.rank, hops, size, RUNS)
            for _ in range(ROUNDS):
                for what, devices in CHAINS.items():
                    rows[f"two {what}"] += runs_us(ranks, graph, devices, RUNS)
                    if alone is not None:
                        rows[f"one {what}"] += runs_us(alone, graph, devices, RUNS)
                    group.wait_for_all()
            least = {what: float(np.percentile(runs, 10)) for what, runs in rows.items()}
            if group.rank == 0:
                write({"mode": mode, "bytes": size, "us": least})
        if alone is not None:
            alone.close()
        ranks.close()


def nccl_alone(write: Any) -> None:
    """A sum over one rank."""
    wires = dist.new_group(backend="nccl")
    one = torch.ones(1, device="cuda:0")
    dist.all_reduce(one, group=wires)
    torch.cuda.synchronize()
    write({"works": one.item() == 1.0})


def rank_main(args: argparse.Namespace) -> None:
    """One process of a step."""
    faulthandler.dump_traceback_later(args.limit * 0.7)
    step, rank = args.step, args.rank
    _, size, _, what, _ = STEPS[step]

    def write(row: dict[str, Any]) -> None:
        append(args.results, {"step": STEPS[step][0]} | row)

    store = dist.FileStore(str(args.folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    if rank == 0 and what in ("nccl", "alone"):
        has_nccl = dist.is_nccl_available()
        version = ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else "none"
        write({"nccl": version, "torch": torch.__version__})
    if what == "alone":
        nccl_alone(write)
        os._exit(0)
    group = Group()
    if what == "times":
        measure_times(group, write)
    elif what == "nccl":
        check_outputs(group, ("fixed",), "nccl", write)
    else:
        check_outputs(group, ("dynamic", "fixed"), "gloo", write)
    group.close()
    os._exit(0)  # without waiting for what NCCL would do in the end


def append(path: Path, row: dict[str, Any]) -> None:
    """Write a row, at once."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def run_step(number: int, results: Path, limit_s: float) -> None:
    """Start the processes of a step, wait, end those that are left, and write how it went."""
    name, size, _, _, environment = STEPS[number]
    began, why = monotonic(), ""
    with tempfile.TemporaryDirectory() as folder:
        ranks, logs = [], []
        for rank in range(size):
            more = {key: value.format(rank=rank) for key, value in environment.items()}
            options = ("--rank", str(rank), "--step", str(number), "--folder", folder)
            options += ("--limit", str(limit_s), str(results))
            log = Path(folder) / f"{rank}.log"
            with log.open("w") as file:
                command = [sys.executable, __file__, "rank", *options]
                more |= {"NCCL_DEBUG": "WARN"}
                process = subprocess.Popen(command, env=os.environ | more, stdout=file, stderr=file)
            ranks.append(process)
            logs.append(log)
        until = began + limit_s
        while monotonic() < until and any(process.poll() is None for process in ranks):
            if any(process.poll() for process in ranks):
                until = min(until, monotonic() + AFTER_S)
            sleep(0.1)
        if monotonic() >= began + limit_s:
            why = f"did not end within {limit_s:.0f} s"
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
        codes = [process.returncode for process in ranks]
        row: dict[str, Any] = {"step": name, "seconds": monotonic() - began, "codes": codes}
        if why or any(codes):
            texts = [log.read_text(errors="replace") for log in logs]
            row |= {"why": why or reason(texts), "logs": [text[-3000:] for text in texts]}
    append(results, row)


def reason(texts: list[str]) -> str:
    """The line of a log that says most."""
    lines = [line.strip() for text in texts for line in text.splitlines()]
    told = [line for line in lines if "Error:" in line or "Duplicate GPU" in line]
    return next((line for line in told if "Duplicate" in line or "NCCL" in line), "") or (
        told[-1] if told else "no reason given"
    )


def show(results: Path) -> None:
    """Print what was found, in Markdown."""
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    print("| step | seconds | outcome |\n|---|---|---|")
    for row in rows:
        if "codes" in row:
            print(f"| {row['step']} | {row['seconds']:.1f} | {row.get('why', 'done')} |")
    outputs = [row for row in rows if "program" in row]
    if outputs:
        print("\n| step | mode | programs | equal | transfers | largest relative error |")
        print("|---|---|---|---|---|---|")
    for step, mode in dict.fromkeys((row["step"], row["mode"]) for row in outputs):
        some = [row for row in outputs if (row["step"], row["mode"]) == (step, mode)]
        equal, transfers = (sum(row[key] for row in some) for key in ("equal", "transfers"))
        worst = max(row["error"] for row in some)
        print(f"| {step} | {mode} | {len(some)} | {equal} | {transfers} | {worst:.1e} |")
    times = [row for row in rows if "us" in row]
    if times:
        print("\n| mode | bytes | | one process | two processes | more | gloo's copy | beyond it |")
        print("|---|---|---|---|---|---|---|---|")
    for row in times:
        for what in CHAINS:
            one, two = row["us"][f"one {what}"], row["us"][f"two {what}"]
            copy = row["us"]["copy"] if what == "crosses" else 0.0
            print(
                f"| {row['mode']} | {row['bytes']:,} | {what} | {one:.1f} | {two:.1f} | "
                f"{two - one:.1f} | {copy:.1f} | {two - one - copy:.1f} |"
            )
    for row in rows:
        if "nccl" in row:
            print(f"\n{row['step']}: NCCL {row['nccl']}, torch {row['torch']}")


def main() -> None:
    """Run all steps, or show what they found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=("run", "show", "rank"))
    parser.add_argument("results", type=Path, help="a file of results")
    parser.add_argument("--seconds", type=float, default=115.0, help="for all steps")
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--step", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=60.0, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=Path(), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.verb == "rank":
        rank_main(args)
    if args.verb == "run":
        until = monotonic() + args.seconds
        for number, (name, _, limit_s, _, _) in enumerate(STEPS):
            left_s = until - monotonic()
            if left_s < 5:
                append(args.results, {"step": name, "seconds": 0.0, "codes": [], "why": "no time"})
                continue
            run_step(number, args.results, min(limit_s, left_s))
    show(args.results)


if __name__ == "__main__":
    main()
