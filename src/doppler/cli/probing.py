"""`dop probe`: measure this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.options import AsJson, Force, Seed
from doppler.cli.output import (
    amount,
    announce,
    factors,
    note,
    percent,
    print_json,
    seconds,
    showing_progress,
    stdout,
    table,
    take_stdout,
)
from doppler.topology.io import MAX_DEVICES

if TYPE_CHECKING:
    from doppler.machine.probe import ProbeResult

PATIENCE_S = 600.0  # that hosts wait for one another, beyond the time of the probe


def probe(
    backend: Annotated[
        str, typer.Option(metavar="cpu|cuda", help="What the devices are: cores or GPUs.")
    ] = "cpu",
    devices: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_DEVICES, metavar="N", help="How many; all there are if left out."
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_DEVICES, metavar="N", help="Cut one GPU into this many devices."
        ),
    ] = None,
    links: Annotated[
        str,
        typer.Option(metavar="host|direct", help="The way of transfers between partitions."),
    ] = "host",
    graph_file: Annotated[
        Path | None,
        typer.Option(
            "--graph", "-g", metavar="GRAPH", help="Run this graph too, and time its kernels in it."
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(metavar="dynamic|fixed", help="How the engine runs the graph to time it."),
    ] = "dynamic",
    limit: Annotated[
        float,
        typer.Option("--seconds", min=0.1, max=1e6, metavar="SECONDS", help="About how long."),
    ] = 60.0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Topology file to write; samples go beside it."
        ),
    ] = None,
    force: Force = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure this machine: its devices, the links between them, and the host that drives them.

    Where torchrun starts one process on each of several hosts, all of them are measured, and the
    links between them.

    With a graph, its kernels get the seconds that they took in runs of it, under good assignments
    first of all, and the costs of the host are fitted to the makespans. Some of the runs are held
    out to say how far all that is off.

    Example: dop probe --backend cpu --graph graph.json -o here.json
    """
    from doppler.base.writing import check_output
    from doppler.engine.ranks.opening import open_group
    from doppler.formats import read_graph
    from doppler.machine.hosts import probe_hosts
    from doppler.machine.probe import FORMAT as SAMPLES
    from doppler.machine.probe import probe as measure
    from doppler.machine.probe import samples_path, write_probe
    from doppler.topology.io import FORMAT as TOPOLOGY

    take_stdout(output, as_json=as_json)
    if output is not None:
        check_output(output, kind=TOPOLOGY, inputs=(graph_file,), force=force)
        check_output(samples_path(output), kind=SAMPLES, inputs=(graph_file,), force=force)
    graph = read_graph(graph_file) if graph_file else None
    options: dict[str, Any] = {
        "backend": backend,
        "partitions": partitions,
        "links": links,
        "graph": graph,
        "devices": devices,
        "mode": mode,
        "seed": seed,
        "seconds": limit,
    }
    with showing_progress(), open_group(limit + PATIENCE_S) as group:
        result = measure(**options) if group is None else probe_hosts(group, **options)
    if group is not None and group.rank:
        return
    beside = write_probe(result, output, force=force) if output else None
    if as_json:
        print_json(_summary(result, output, beside))
    else:
        _print(result)
        announce(output, beside)
    for failure in result.failures:
        note(f"did not run: {failure}")


def _summary(result: "ProbeResult", output: Path | None, beside: Path | None) -> dict[str, Any]:
    from dataclasses import asdict

    topology = result.topology
    return {
        "topology": topology.name,
        "description": topology.description,
        "devices": [
            {
                "name": device.name,
                "address": device.address,
                "flops_per_s": dict(device.flops_per_s),
                "memory_bytes_per_s": device.memory_bytes_per_s,
                "launch_s": device.launch_s,
            }
            for device in topology.devices
        ],
        "links": [
            asdict(link)
            | {"pairs": int((topology.route == i).sum()), "host": topology.host_links.count(i)}
            for i, link in enumerate(topology.links)
        ],
        "host": asdict(topology.host),
        "kernels": len(topology.exec_s),
        "runs": result.runs,
        "failures": list(result.failures),
        "errors": asdict(result.errors),
        "samples": len(result.samples),
        "files": [str(path) for path in (output, beside) if path],
    }


def _print(result: "ProbeResult") -> None:
    out, topology, errors = stdout(), result.topology, result.errors
    out.print(topology.description)
    columns = ("FLOP/s: float16", "float32", "float64")
    devices = table("device", "address", *columns, "memory", "launch")
    for device in topology.devices:
        rates = [device.flops_per_s.get(c, 0.0) for c in ("float16", "float32", "float64")]
        devices.add_row(
            device.name,
            device.address,
            *(amount(rate, "") for rate in rates),
            amount(device.memory_bytes_per_s, "B/s"),
            seconds(device.launch_s),
        )
    out.print(devices)
    if topology.links:
        links = table("link", "pairs", "host", "lanes", "of each", "latency", "via")
        for i, link in enumerate(topology.links):
            links.add_row(
                link.name,
                str(int((topology.route == i).sum())),
                str(topology.host_links.count(i)),
                str(link.lanes or "any"),
                amount(link.bandwidth_bytes_per_s, "B/s"),
                seconds(link.latency_s),
                link.via,
            )
        out.print(links)
    host = topology.host
    out.print(
        f"host: {seconds(host.dispatch_s)} to start a task, {seconds(host.completion_s)} until an "
        f"end is seen, {host.ahead} task started ahead"
    )
    for way, off in errors.links.items():
        out.print(f"throughput of several transfers ({way}): off by {percent(off)}")
    off_by = ", ".join(f"{kind} {percent(off)}" for kind, off in errors.roofline.items())
    out.print(f"kernels alone, against flops and bytes: off by {off_by}")
    if topology.contention:
        out.print(f"kernels where all devices are busy: {factors(topology.contention)}")
    if result.runs:
        off_by = ", ".join(f"{kind} {percent(off)}" for kind, off in errors.held_out.items())
        out.print(
            f"{len(topology.exec_s)} kernels timed in {result.runs} runs; "
            f"in those held out, durations are off by {off_by}"
        )
    if errors.makespans:
        before, after = (percent(errors.makespans[key]) for key in ("before", "after"))
        out.print(f"and makespans by {after}; by {before} before the host was fitted to others")
