r"""Imported models on real devices: whole and sharded, on one of them and on all.

    python benchmarks/models_engine.py run --backend cuda --partitions 4 --results models.jsonl
    python benchmarks/models_engine.py run bert --backend cpu --partitions 2 --results models.jsonl
    python benchmarks/models_engine.py show models.jsonl

Models of the gallery with random weights, in float32, on parts of a GPU or on cores. Each is
imported whole and with `--parts`; the machine is measured with either graph. Each assignment then
runs: of the whole model all on one device, by the critical path, by `auto`, and as Accelerate's
`balanced` splits it; of the shards by the critical path and by `auto`; and tensor parallelism, with
shards of its own. Beside each measured time is the simulated one, and how far the outputs are off
those of the module itself. A row is written as soon as it is measured. Pieces are copied within a
GPU, so links are `direct` unless told otherwise.
"""

import argparse
import json
import logging
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from engine_study import machine
from model_splits import balanced_assignment, tensor_parallel
from models import error
from torch.utils._pytree import tree_leaves

import doppler as dp
from doppler.frontends.gallery import TRANSFORMERS, Example
from doppler.frontends.torch_export import exported, from_functional, make_functional
from doppler.frontends.torch_model import TorchModel
from doppler.placers.warm_up import warm_up_search
from doppler.problem import Problem
from doppler.scheduler.choose import MODES
from doppler.sim import SimConfig, Simulator

BATCH, LENGTH, WORDS = "batch", "length", 8192
_LLAMA = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 4,
          "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": WORDS}  # fmt: skip
_GPT2 = {"n_embd": 2048, "n_layer": 4, "n_head": 16, "vocab_size": WORDS, "n_positions": 1024}
_BERT = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4,
         "num_attention_heads": 16, "vocab_size": WORDS,
         "max_position_embeddings": 1024}  # fmt: skip
# Fields of configurations, and shapes of tokens; on the CPU those of the gallery.
SIZES: dict[str, dict[str, dict[str, int]]] = {
    "cuda": {
        "llama": {BATCH: 4, LENGTH: 1024, **_LLAMA},
        "gpt2": {BATCH: 4, LENGTH: 1024, **_GPT2},
        "bert": {BATCH: 4, LENGTH: 1024, **_BERT},
        "llama, one request": {BATCH: 1, LENGTH: 2048, **_LLAMA},
    },
    "cpu": {name: {BATCH: 4, LENGTH: 32} for name in ("llama", "gpt2", "bert")},
}
WHOLE, SHARDED, COLUMNS = "whole", "shards", "columns"
SINGLE, BALANCED, PARALLEL = "single", "balanced", "tensor-parallel"
CASES = ((WHOLE, SINGLE), (WHOLE, BALANCED), (WHOLE, "critical-path"), (WHOLE, "auto"),
         (SHARDED, "critical-path"), (SHARDED, "auto"), (COLUMNS, PARALLEL))  # fmt: skip
Row = dict[str, Any]


def make_model(title: str, backend: str) -> Example:
    """A model with random weights on the devices of a backend, and arguments for a call."""
    import transformers

    fields = dict(SIZES[backend][title])
    shape = fields.pop(BATCH), fields.pop(LENGTH)
    model, config_class, small, _ = TRANSFORMERS[title.split(",")[0]]
    config = getattr(transformers, config_class)(**small | fields)
    torch.manual_seed(0)
    with torch.device(backend):
        module = getattr(transformers, model)(config).eval()
        tokens = torch.randint(0, config.vocab_size, shape)
    return module, (), {"input_ids": tokens}


def run(title: str, args: argparse.Namespace) -> Iterator[Row]:
    """The rows of one model, as they are measured."""
    module, _, kwargs = make_model(title, args.backend)
    eager_ms, expected = run_eager(module, kwargs, args.repeats)
    module, kwargs = module.cpu(), {name: x.cpu() for name, x in kwargs.items()}
    common = {"model": title, "sizes": SIZES[args.backend][title], "backend": args.backend}
    common |= {"devices": args.partitions, "links": args.links, "mode": args.mode}
    common |= {"date": str(date.today()), "machine": machine(args.backend), "eager_ms": eager_ms}
    with torch.no_grad():
        program = make_functional(exported(module, (), kwargs))
    for what in (WHOLE, SHARDED, COLUMNS):
        began, split = perf_counter(), None
        if what == COLUMNS:
            model, split = tensor_parallel(program, args.partitions)
        else:
            parts = args.parts if what == SHARDED else None
            model = from_functional(program, parts=parts, method=args.method)
        import_s = perf_counter() - began
        problem = Problem(model.graph, measured(model.graph, args))
        probe_s = perf_counter() - began - import_s
        print(f"{title}, {what}: import {import_s:.1f} s, probe {probe_s:.1f} s", flush=True)
        common |= {"graph": what, "method": args.method, "parts": args.parts}
        common |= {"pieces": len(model.graph.assigned), "import_s": import_s, "probe_s": probe_s}
        common["flops"] = float(model.graph.flops.sum())
        config = dp.EngineConfig(mode=args.mode)
        with dp.Engine(problem.topology, args.backend, config) as engine:
            for placer in (name for graph, name in CASES if graph == what):
                assignment = split or place(problem, placer, module, args)
                if assignment is not None:
                    row = timed(engine, problem, model, assignment, kwargs, expected, args.repeats)
                    yield common | {"placer": placer} | row


def run_eager(
    module: torch.nn.Module, kwargs: dict[str, Any], repeats: int
) -> tuple[float, list[torch.Tensor]]:
    """Milliseconds of the module itself, on all of the GPU or on one core, and its outputs."""
    seconds = []
    with torch.no_grad():
        for _ in range(repeats + 1):
            began = perf_counter()
            found = module(**kwargs)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds.append(perf_counter() - began)
    return float(np.median(seconds[1:]) * 1e3), on_host(found)


def on_host(outputs: Any) -> list[torch.Tensor]:
    """The tensors in what a module returns."""
    return [x.cpu() for x in tree_leaves(outputs) if isinstance(x, torch.Tensor)]


def measured(graph: dp.Graph, args: argparse.Namespace) -> dp.Topology:
    """The machine, with the seconds of the kernels of a graph."""
    parts: dict[str, Any] = {"devices": args.partitions}
    if args.backend == "cuda":
        parts = {"partitions": args.partitions, "links": args.links}
    found = dp.probe(args.backend, graph=graph, mode=args.mode, seconds=args.probe, **parts)
    return found.topology


def place(
    problem: Problem, placer: str, module: torch.nn.Module, args: argparse.Namespace
) -> dp.Assignment | None:
    """The assignment of that name; None where Accelerate makes none."""
    if placer == BALANCED:
        return balanced_assignment(module, problem)
    budget = args.budget if placer == "auto" else None
    return dp.place(problem.graph, problem.topology, placer, budget_s=budget, mode=args.mode)


def timed(
    engine: dp.Engine,
    problem: Problem,
    model: TorchModel,
    assignment: dp.Assignment,
    kwargs: dict[str, Any],
    expected: list[torch.Tensor],
    repeats: int,
) -> Row:
    """Measured and simulated milliseconds of an assignment, and the error of its outputs."""
    graph, inputs = problem.graph, model.inputs(**kwargs)
    simulator = Simulator(problem, SimConfig(mode=engine.config.mode))
    used = len(np.unique(assignment.devices[assignment.devices >= 0]))
    row: Row = {"used": used, "predicted_ms": simulator.run(graph, assignment).makespan_s * 1e3}
    found = model.outputs(engine.execute(graph, assignment, inputs).outputs, inputs)
    row["error"] = error(on_host(found), expected)
    seconds = engine.makespans(graph, assignment, repeats=repeats, warm_up=2)
    row |= {"mean_ms": float(seconds.mean() * 1e3), "std_ms": float(seconds.std() * 1e3)}
    return row | {"runs_ms": (seconds * 1e3).round(4).tolist()}


def keep(rows: Iterable[Row], path: Path) -> None:
    """Write each row as soon as it is there, and show them all, even after an interruption."""
    try:
        for row in rows:
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print({key: row[key] for key in ("model", "graph", "placer", "mean_ms")}, flush=True)
    finally:
        if path.exists():
            show([path])


def show(paths: list[Path]) -> None:
    """The tables, as docs have them."""
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    for key in dict.fromkeys((row["model"], row["backend"], row["devices"]) for row in rows):
        some = [row for row in rows if (row["model"], row["backend"], row["devices"]) == key]
        first = some[0]
        tokens = f"{first['sizes'][BATCH]} × {first['sizes'][LENGTH]:,} tokens"
        where = f"{key[2]} devices ({key[1]}, {first['mode']} mode, {first['links']} links)"
        print(f"\n{key[0]}, {tokens}, {first['flops'] / 1e12:.3g} Tflop, float32; {where}. The "
              f"module itself, on all of the GPU or on a core: {first['eager_ms']:.1f} ms."
              "\n")  # fmt: skip
        print("| graph | pieces | placer | devices | measured, ms | simulated, ms | speed-up | "
              "error |")  # fmt: skip
        print("| --- | ---: | --- " + "| ---: " * 5 + "|")
        alone = next((row["mean_ms"] for row in some if row["placer"] == SINGLE), None)
        for row in some:
            print("| " + " | ".join(_cells(row, alone)) + " |")


def _cells(row: Row, alone_ms: float | None) -> list[str]:
    return [
        "whole"
        if row["graph"] == WHOLE
        else "columns"
        if row["graph"] == COLUMNS
        else f"{row['parts']} parts, {row['method']}",
        str(row["pieces"]),
        f"`{row['placer']}`",
        str(row["used"]),
        f"{row['mean_ms']:.2f} ± {row['std_ms']:.2f}",
        f"{row['predicted_ms']:.2f}",
        f"{alone_ms / row['mean_ms']:.2f} ×" if alone_ms else "–",
        f"{row['error']:.1e}" if row["error"] else "exact",
    ]


def main() -> None:
    """Run and print, or print."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    new = verbs.add_parser("run")
    new.add_argument("models", nargs="*", help="names of the tables; all, if there are none")
    new.add_argument("--backend", default="cpu", choices=tuple(SIZES))
    new.add_argument("--partitions", type=int, default=2, help="parts of the GPU, or cores")
    new.add_argument("--parts", type=int, default=4, help="of each operation, where sharded")
    new.add_argument("--method", default="tokens", help="of cutting: paper, tokens or columns")
    new.add_argument("--links", default="direct", help="of parts of a GPU: host or direct")
    new.add_argument("--mode", default="fixed", choices=MODES)
    new.add_argument("--budget", type=float, default=3.0, metavar="SECONDS", help="of `auto`")
    new.add_argument("--probe", type=float, default=6.0, metavar="SECONDS", help="to measure")
    new.add_argument("--repeats", type=int, default=10)
    results = Path(tempfile.gettempdir()) / "models-engine.jsonl"
    new.add_argument("--results", type=Path, default=results)
    verbs.add_parser("show").add_argument("results", nargs="+", type=Path)
    args = parser.parse_args()
    if args.verb == "show":
        show(args.results)
        return
    if args.backend == "cpu":
        torch.set_num_threads(1)  # as each device has: sums in another order have other last bits
    warm_up_search()
    titles = args.models or SIZES[args.backend]
    keep((row for title in titles for row in run(title, args)), args.results)


if __name__ == "__main__":
    main()
