"""Two hosts on one machine: does the simulator, on the topology that was probed, predict the runs?

    sudo python benchmarks/rank_hosts.py [--mbit 200] [--delay-ms 2] [--seconds 20] [--json]

The hosts are network namespaces, joined by a pair of virtual interfaces that `tc` slows down:
netem delays and limits the bandwidth; where the kernel has no netem, tbf limits the bandwidth
alone, and the output says so. Each host has half of the cores. The two processes probe them, place
a graph by several placers on the topology that was found, and run each assignment in turn. Printed
are predicted and measured makespans, and how much faster than round-robin each assignment was
predicted to be and is.
"""

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import doppler as dp
from doppler.engine.config import EngineConfig
from doppler.engine.ranks.group import Group
from doppler.engine.ranks.rank_engine import RankEngine
from doppler.machine.hosts import probe_hosts

SPACES = ("doppler-a", "doppler-b")
CLONE_NEWNET = 0x40000000
PLACERS = ("round-robin", "critical-path", "heft", "enumerative", "single", "auto")


def run(*command: str, check: bool = True) -> bool:
    """Whether a command succeeded."""
    done = subprocess.run(command, check=check, capture_output=True)
    return done.returncode == 0


def why_not() -> str:
    """Why there can be no such hosts here; empty where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"`{missing[0]}` is not installed (iproute2)" if missing else ""


@contextmanager
def two_hosts(mbit: int, delay_ms: float) -> Iterator[str]:
    """Two joined namespaces; what slows the connection down."""
    try:
        for i, space in enumerate(SPACES):
            run("ip", "netns", "add", space)
            if i == 0:
                run("ip", "link", "add", "doppler0", "type", "veth", "peer", "name", "doppler1")
        for i, space in enumerate(SPACES):
            run("ip", "link", "set", f"doppler{i}", "netns", space)
            inside = ("ip", "netns", "exec", space)
            run(*inside, "ip", "addr", "add", f"10.77.0.{i + 1}/24", "dev", f"doppler{i}")
            run(*inside, "ip", "link", "set", f"doppler{i}", "up")
            run(*inside, "ip", "link", "set", "lo", "up")
            shape = (*inside, "tc", "qdisc", "add", "dev", f"doppler{i}", "root")
            netem = ("netem", "delay", f"{delay_ms}ms", "rate", f"{mbit}mbit", "limit", "100000")
            how = f"netem: {mbit} Mbit/s, {delay_ms:g} ms each way"
            if not run(*shape, *netem, check=False):
                run(*shape, "tbf", "rate", f"{mbit}mbit", "burst", "32kb", "latency", "2s")
                how = f"tbf: {mbit} Mbit/s, no delay (the kernel has no netem)"
        yield how
    finally:
        for space in SPACES:
            run("ip", "netns", "del", space, check=False)
        run("ip", "link", "del", "doppler0", check=False)


def enter(rank: int) -> None:
    """Go to the host of a rank."""
    with Path(f"/var/run/netns/{SPACES[rank]}").open() as space:
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    os.environ["GLOO_SOCKET_IFNAME"] = f"doppler{rank}"


def rank_main(folder: Path, rank: int, args: argparse.Namespace) -> None:
    """The process of one host."""
    enter(rank)
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    group = Group(120.0)
    program = dp.programs.chainmm(size=args.size, dtype="float32")
    graph = dp.shard(program, parts=4)
    topology = probe_hosts(group, seconds=args.seconds, graph=graph, devices=1).topology
    engine = RankEngine(topology, group, EngineConfig())
    rows = []
    for placer in PLACERS:
        assignment = group.gather(dp.place(graph, topology, placer, seed=0) if rank == 0 else None)[
            0
        ]
        measured = engine.makespans(graph, assignment, repeats=args.repeats, warm_up=2)
        predicted = dp.simulate(graph, topology, assignment).makespan_s
        rows.append([placer, predicted, float(np.median(measured))])
    engine.close()
    if rank == 0:
        link = topology.links[-1]
        found = {"rows": rows, "latency_s": link.latency_s}
        found["bandwidth_bytes_per_s"] = link.bandwidth_bytes_per_s
        (folder / "found.json").write_text(json.dumps(found))
    group.close()
    os._exit(0)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """What the first process found."""
    with two_hosts(args.mbit, args.delay_ms) as how, tempfile.TemporaryDirectory() as name:
        children = []
        for rank in range(2):
            if (pid := os.fork()) == 0:
                rank_main(Path(name), rank, args)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        return json.loads((Path(name) / "found.json").read_text()) | {"connection": how}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mbit", type=int, default=200)
    parser.add_argument("--delay-ms", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    found = measure(args)
    if args.json:
        print(json.dumps(found))
        return
    print(found["connection"])
    rate, latency = found["bandwidth_bytes_per_s"] * 8e-6, found["latency_s"] * 1e3
    print(f"probed: {rate:.0f} Mbit/s, latency {latency:.2f} ms")
    print("| placer | predicted | measured | off by | faster than round-robin: predicted | is |")
    print("|---|---|---|---|---|---|")
    _, first_p, first_m = found["rows"][0]
    for placer, predicted, measured in found["rows"]:
        print(
            f"| {placer} | {predicted * 1e3:.1f} ms | {measured * 1e3:.1f} ms | "
            f"{predicted / measured - 1:+.1%} | {first_p / predicted:.2f} × | "
            f"{first_m / measured:.2f} × |"
        )


if __name__ == "__main__":
    main()
