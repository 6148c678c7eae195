r"""Models of the gallery: which are imported, whether they run as they are, and where they go.

Three tables. `small/NAME` imports each small model, places it with memory counted, and runs it on
two CPU devices under a random assignment: what it returns is compared with what the module returns.
`full/NAME/TOPOLOGY` imports a model at its published size (float16, on the meta device), places it
with `auto`, and simulates next to it the split that Accelerate's `balanced` makes of the same model
for the same memories. Accelerate runs one device at a time; the simulator lets its devices overlap
wherever the graph allows, so its column is what it could reach at best. `sharded/NAME/TOPOLOGY/N`
cuts such a model into `--parts` N in every way there is, and puts beside the best of them both
Accelerate's split and tensor parallelism as DTensor's plan for Llama has it; all in mode `fixed`.

    python benchmarks/models.py list
    python benchmarks/models.py run 'small/*' --results models.jsonl
    python benchmarks/models.py show models.jsonl

Most models need the extra `gallery`; those are left out where it is missing.
`python benchmarks/models.py large` imports Llama-2 7B at 2,048 tokens in float32.
"""

import argparse
import logging
import resource
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from jobs import Job, Result, read, run_jobs
from model_splits import balanced_assignment, tensor_parallel
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

import doppler as dp
from doppler.assignment import Assignment
from doppler.errors import DopplerError, MissingExtraError, OutOfMemoryError
from doppler.frontends.gallery import MODELS, TRANSFORMERS, make_example
from doppler.frontends.lifting.cut_rules import METHODS
from doppler.frontends.models.full_size import make_full_example
from doppler.frontends.torch_export import exported, from_functional, from_torch, make_functional
from doppler.graph.graph import Graph
from doppler.graph.signatures import signatures
from doppler.placers import gap
from doppler.placers.bounds.lower import proven_bound_s
from doppler.problem import Problem
from doppler.scheduler.choose import FIXED
from doppler.sim import SimConfig, Simulator

UNEQUAL, EQUAL = "a100x2-t4x2", "p100x4"
TOPOLOGIES = (UNEQUAL, "p100x4-first-fit")
# Others take minutes to import at full size (a loop over all tokens, or dozens of experts).
FULL = ("llama", "falcon", "opt", "gpt2", "bert", "distilbert", "t5", "whisper", "vit", "swin",
        "clip", "resnet", "convnext", "mobilenet-v2")  # fmt: skip

SHARDED = ("llama", "gpt2", "bert", "falcon", "opt", "distilbert", "t5", "whisper", "vit", "clip")


def small(name: str, budget_s: float, **_: Any) -> Result:
    """A small model: imported, placed, and run."""
    module, args, kwargs = make_example(name)
    began = perf_counter()
    model = from_torch(module, args, kwargs)
    import_s = perf_counter() - began
    graph = model.graph
    state = {key: buffer.clone() for key, buffer in module.named_buffers()}
    with torch.no_grad():
        expected = module(*args, **kwargs)
        for key, buffer in module.named_buffers():
            buffer.copy_(state[key])
    devices = np.random.default_rng(0).integers(0, 2, graph.num_vertices)
    assignment = Assignment(devices=np.where(graph.is_input, -1, devices))
    found = model.run("cpu2", assignment, *args, **kwargs)
    calls = sum(len(graph.kernels[v].attributes["calls"]) for v in graph.assigned.tolist())
    return {
        "vertices": graph.num_vertices,
        "pieces": len(graph.assigned),
        "distinct": len(set(signatures(graph)) - {""}),
        "operations": calls,
        "flops": float(graph.flops.sum()),
        "error": error(found, expected),
        "import_s": import_s,
        **placed(graph, UNEQUAL, budget_s),
    }


def error(found: Any, expected: Any) -> float:
    """The largest error of any element, relative to the largest of its tensor."""
    worst = 0.0
    for a, b in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        if isinstance(b, torch.Tensor) and not torch.equal(a, b):
            worst = max(worst, float((a - b).abs().max() / b.abs().max()))
    return worst


def placed(graph: Graph, topology: str, budget_s: float) -> Result:
    """What `auto` makes of a graph."""
    problem = Problem(graph, dp.Topology.preset(topology))
    assignment = dp.place(graph, problem.topology, "auto", budget_s=budget_s)
    makespan_s = Simulator(problem).run(graph, assignment).makespan_s
    bound_s = proven_bound_s(problem, assignment)
    used = len(np.unique(assignment.devices[assignment.devices >= 0]))
    return {"makespan_s": makespan_s, "bound_s": bound_s, "gap": gap(makespan_s, bound_s),
            "devices": used, "planned": assignment.memory is not None}  # fmt: skip


def full(name: str, topology: str, budget_s: float) -> Result:
    """A model at its published size: `auto`, and the split of Accelerate."""
    module, args, kwargs = make_full_example(name)
    began = perf_counter()
    graph = from_torch(module, args, kwargs).graph
    import_s = perf_counter() - began
    problem = Problem(graph, dp.Topology.preset(topology))
    return {
        "pieces": len(graph.assigned),
        "flops": float(graph.flops.sum()),
        "weights_bytes": float(graph.tensor_bytes[graph.is_resident[graph.tensor_producer]].sum()),
        "import_s": import_s,
        "single_s": single_s(problem),
        **placed(graph, topology, budget_s),
        **balanced(module, problem),
    }


def single_s(problem: Problem) -> float | None:
    """The makespan on the best single device; None where none has the memory."""
    inputs, size = problem.graph.is_input, problem.topology.num_devices
    rows = np.array([np.where(inputs, -1, d) for d in range(size)])
    best = float(Simulator(problem).makespans(problem.graph, rows).min())
    return best if np.isfinite(best) else None


def balanced(module: torch.nn.Module, problem: Problem) -> Result:
    """The makespan of the split that Accelerate makes; None where there is none, or no memory."""
    assignment = balanced_assignment(module, problem)
    if assignment is None:
        return {"balanced_s": None, "balanced_devices": 0}
    used = len(np.unique(assignment.devices[assignment.devices >= 0]))
    try:
        makespan_s = Simulator(problem).run(problem.graph, assignment).makespan_s
    except OutOfMemoryError:
        return {"balanced_s": None, "balanced_devices": used}
    return {"balanced_s": makespan_s, "balanced_devices": used}


def sharded(name: str, topology: str, parts: str, budget_s: float) -> Result:
    """A model at its published size, in parts: every way to cut it, and two other splits of it."""
    module, args, kwargs = make_full_example(name)
    began, machine, count = perf_counter(), dp.Topology.preset(topology), int(parts)
    with torch.no_grad():
        program = make_functional(exported(module, args, kwargs))
    whole = Problem(from_functional(program).graph, machine)
    ways = {method: from_functional(program, parts=count, method=method) for method in METHODS}
    found = {"whole": found_s(whole, budget_s)}
    found |= {way: found_s(Problem(x.graph, machine), budget_s) for way, x in ways.items()}
    best = min(found, key=lambda way: found[way]["makespan_s"] or np.inf)
    alone = [np.where(whole.graph.is_input, -1, d) for d in range(machine.num_devices)]
    singles = [makespan_s(whole, Assignment(devices)) for devices in alone]
    return {
        "flops": float(whole.graph.flops.sum()),
        "lifted_share": ways["paper"].lifting.lifted_share,
        "single_s": fastest(singles),
        "balanced_s": makespan_s(whole, balanced_assignment(module, whole)),
        **columns(program, machine, count),
        "ways": {way: each["makespan_s"] for way, each in found.items()},
        "best": best,
        **found[best],
        "seconds": perf_counter() - began,
    }


def columns(program: ExportedProgram, machine: dp.Topology, parts: int) -> Result:
    """The makespan of tensor parallelism, and that with a host of its own for every device."""
    splits = [tensor_parallel(program, parts, by_tokens=each) for each in (True, False)]
    host = replace(machine.host, dispatch_s=machine.host.dispatch_s / machine.num_devices)
    found = {}
    for key, topology in (("columns_s", machine), ("hosts_s", replace(machine, host=host))):
        pairs = ((Problem(model.graph, topology), split) for model, split in splits)
        found[key] = fastest([makespan_s(problem, split) for problem, split in pairs])
    return found


def found_s(problem: Problem, budget_s: float) -> Result:
    """What `auto` makes of a graph in mode `fixed`, without evictions."""
    graph = problem.graph
    assignment = dp.place(graph, problem.topology, "auto", budget_s=budget_s, mode=FIXED)
    found = None if assignment.memory is not None else makespan_s(problem, assignment)
    bound_s = proven_bound_s(problem, assignment, FIXED)
    return {"makespan_s": found, "bound_s": bound_s, "pieces": len(graph.assigned)}


def makespan_s(problem: Problem, assignment: Assignment | None) -> float | None:
    """Simulated seconds in mode `fixed`; None where there is no assignment, or no memory."""
    if assignment is None:
        return None
    try:
        return Simulator(problem, SimConfig(mode=FIXED)).run(problem.graph, assignment).makespan_s
    except OutOfMemoryError:
        return None


def fastest(seconds: list[float | None]) -> float | None:
    """The least of those that are there."""
    return min((each for each in seconds if each is not None), default=None)


def jobs(parts: int) -> Iterator[Job]:
    """All jobs."""
    for name in (*MODELS, *TRANSFORMERS):
        yield Job(f"small/{name}", small)
    for name in FULL:
        for topology in TOPOLOGIES:
            yield Job(f"full/{name}/{topology}", full)
    for name in SHARDED:
        yield Job(f"sharded/{name}/{EQUAL}/{parts}", sharded)


def do(job: Job, budget_s: float) -> Result:
    """The result of a job, or why there is none."""
    _, *given = job.name.split("/")
    try:
        return job.work(*given, budget_s=budget_s) | {"budget_s": budget_s}
    except (DopplerError, ImportError) as problem:
        is_missing = isinstance(problem, (MissingExtraError, ImportError))
        return {"missing" if is_missing else "failed": str(problem).splitlines()[0]}


def show(results: dict[str, Result]) -> None:
    """The tables."""
    for table, shown in TABLES:
        rows = {job: row for job, row in results.items() if job.startswith(table + "/")}
        for job in [job for job, row in rows.items() if "missing" in row]:
            print(f"\nleft out: {job}: {rows.pop(job)['missing']}")
        if rows:
            shown(rows)


def show_small(rows: dict[str, Result]) -> None:
    known = {job: row for job, row in rows.items() if "failed" not in row}
    exact = sum(not row["error"] for row in known.values())
    print(f"\nSmall models: {len(known)} of {len(rows)} imported, {exact} of them equal to the "
          f"module bit for bit. Placed by `auto` on {UNEQUAL}.\n")  # fmt: skip
    print("| model | vertices | pieces | distinct | operations | Mflop | import, s | error | "
          "makespan, µs | bound, µs | gap |")  # fmt: skip
    print("| --- " + "| ---: " * 10 + "|")
    for job, row in rows.items():
        name = job.split("/")[1]
        if "failed" in row:
            print(f"| {name} | {row['failed']} |")
            continue
        error = f"{row['error']:.1e}" if row["error"] else "exact"
        print(f"| {name} | {row['vertices']} | {row['pieces']} | {row['distinct']} | "
              f"{row['operations']} | {row['flops'] / 1e6:.3f} | {row['import_s']:.1f} | {error} | "
              f"{row['makespan_s'] * 1e6:.0f} | {row['bound_s'] * 1e6:.0f} | "
              f"{100 * max(row['gap'], 0):.1f} % |")  # fmt: skip


def show_full(rows: dict[str, Result]) -> None:
    for topology in TOPOLOGIES:
        some = {job: row for job, row in rows.items() if job.split("/")[2] == topology}
        ahead = [row["balanced_s"] / row["makespan_s"] for row in some.values()
                 if row.get("balanced_s")]  # fmt: skip
        print(f"\nPublished sizes on {topology}: `auto` is ahead of Accelerate's split on "
              f"{sum(ratio > 1.001 for ratio in ahead)} of {len(ahead)} models.\n")  # fmt: skip
        print(
            "| model | pieces | Tflop | weights, GB | import, s | one device, ms | "
            "Accelerate, ms | devices | `auto`, ms | devices | bound, ms | gap | speed-up |"
        )
        print("| --- " + "| ---: " * 12 + "|")
        for job, row in some.items():
            print("| " + " | ".join(full_cells(job, row)) + " |")


def full_cells(job: str, row: Result) -> list[str]:
    name = job.split("/")[1]
    if "failed" in row:
        return [name, row["failed"]]
    split_s = row["balanced_s"]
    return [
        name,
        str(row["pieces"]),
        f"{row['flops'] / 1e12:.3f}",
        f"{row['weights_bytes'] / 1e9:.2f}",
        f"{row['import_s']:.0f}",
        ms(row["single_s"]) if row["single_s"] else "does not fit",
        ms(split_s) if split_s else "does not fit",
        str(row["balanced_devices"]),
        ms(row["makespan_s"]),
        str(row["devices"]),
        ms(row["bound_s"]),
        f"{100 * max(row['gap'], 0):.1f} %",
        f"{split_s / row['makespan_s']:.2f} ×" if split_s else "–",
    ]


def show_sharded(rows: dict[str, Result]) -> None:
    known = [row for row in rows.values() if "failed" not in row]
    text = [f"{count_ahead(known, key)} of {len(known)}" for key in ("balanced_s", "columns_s")]
    parts = next(iter(rows)).split("/")[3]
    print(f"\nPublished sizes on {EQUAL} in {parts} parts, mode `fixed`: ahead of Accelerate's "
          f"split on {text[0]} models, of tensor parallelism on {text[1]}.\n")  # fmt: skip
    print("| model | lifted | one device, ms | Accelerate, ms | tensor parallel, ms | a host "
          "each, ms | `auto`: whole, ms | `paper`, ms | `tokens`, ms | `columns`, ms | bound, ms | "
          "gap | against Accelerate | against tensor parallel |")  # fmt: skip
    print("| --- " + "| ---: " * 13 + "|")
    for job, row in rows.items():
        print("| " + " | ".join(sharded_cells(job, row)) + " |")


def count_ahead(rows: list[Result], key: str) -> int:
    """On how many models the best way is faster than another split, or fits where that does not."""
    return sum((row[key] or np.inf) > 1.001 * row["makespan_s"] for row in rows)


def sharded_cells(job: str, row: Result) -> list[str]:
    name = job.split("/")[1]
    if "failed" in row:
        return [name, row["failed"]]
    own_s, keys = row["makespan_s"], ("single_s", "balanced_s", "columns_s", "hosts_s")
    ways = {way: ms(each) if each else "does not fit" for way, each in row["ways"].items()}
    ways[row["best"]] = f"**{ways[row['best']]}**"
    return [
        name,
        f"{100 * row['lifted_share']:.1f} %",
        *(ms(row[key]) if row[key] else "does not fit" for key in keys),
        *ways.values(),
        ms(row["bound_s"]),
        f"{100 * max(gap(own_s, row['bound_s']), 0):.1f} %",
        *(f"{row[key] / own_s:.2f} ×" if row[key] else "–" for key in keys[1:3]),
    ]


TABLES = (("small", show_small), ("full", show_full), ("sharded", show_sharded))


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g}"


def large() -> None:
    import transformers

    with torch.device("meta"):
        module = transformers.LlamaForCausalLM(transformers.LlamaConfig(use_cache=False)).eval()
        tokens = torch.zeros(1, 2048, dtype=torch.long)
    began = process_time()
    graph = from_torch(module, (), {"input_ids": tokens}).graph
    seconds = process_time() - began
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"Llama-2 7B, 2,048 tokens: {seconds:.1f} CPU seconds, {peak_gb:.2f} GB at most, "
          f"{len(graph.assigned)} pieces ({len(set(signatures(graph))) - 1} distinct), "
          f"{graph.flops.sum() / 1e12:.2f} TFLOP")  # fmt: skip


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)  # as each device has: sums in another order have other last bits
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("large")
    listed, new, shown = (verbs.add_parser(verb) for verb in ("list", "run", "show"))
    new.add_argument("patterns", nargs="*", default=["*"])
    new.add_argument("--budget", type=float, default=5.0, metavar="SECONDS", help="of `auto`")
    new.add_argument("--results", type=Path, default=Path(tempfile.gettempdir()) / "models.jsonl")
    for each in (listed, new):
        each.add_argument("--parts", type=int, default=4, help="of a sharded model")
    shown.add_argument("results", nargs="+", type=Path)
    args = parser.parse_args()
    if args.verb == "large":
        large()
    elif args.verb == "list":
        print("\n".join(job.name for job in jobs(args.parts)))
    elif args.verb == "run":
        found = jobs(args.parts)
        run_jobs(found, args.patterns, lambda job: do(job, args.budget), args.results)
        show(read([args.results]))
    else:
        show(read(args.results))


if __name__ == "__main__":
    main()
