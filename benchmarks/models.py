"""Models of many architectures: whether they import, into what, and whether they run as they are.

`python benchmarks/models.py` takes about two minutes; with names, only those models. Most need the
extra `gallery`, and those are left out where it is missing. Each model runs on two CPU devices
under a random assignment, and what it returns is compared with what the module returns.
`python benchmarks/models.py --large` imports Llama-2 7B at 2,048 tokens on the meta device instead.
"""

import logging
import resource
import sys
import warnings
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from doppler.assignment import Assignment
from doppler.errors import DopplerError, MissingExtraError
from doppler.frontends.gallery import MODELS, TRANSFORMERS, make_example
from doppler.frontends.torch_export import from_torch
from doppler.graph.signatures import signatures

HEAD = ("model", "pieces", "distinct", "operations", "Mflop", "error", "import s")


def row(name: str) -> tuple[Any, ...]:
    """A model's line of the table."""
    module, args, kwargs = make_example(name)
    began = perf_counter()
    model = from_torch(module, args, kwargs)
    seconds = perf_counter() - began
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
    distinct = len(set(signatures(graph)) - {""})
    flops = graph.flops.sum() / 1e6
    return (name, len(graph.assigned), distinct, calls, f"{flops:.3f}",
            error(found, expected), f"{seconds:.1f}")  # fmt: skip


def error(found: Any, expected: Any) -> str:
    """The largest error of any element, relative to the largest of its tensor; or `exact`."""
    worst = 0.0
    for a, b in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        if isinstance(b, torch.Tensor) and not torch.equal(a, b):
            worst = max(worst, float((a - b).abs().max() / b.abs().max()))
    return f"{worst:.1e}" if worst else "exact"


def show(names: list[str]) -> None:
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
    failed = 0
    for name in names:
        try:
            print("| " + " | ".join(map(str, row(name))) + " |", flush=True)
        except MissingExtraError:
            print(f"{name} is left out: it needs the extra `gallery`", file=sys.stderr)
        except DopplerError as problem:
            failed += 1
            print(f"| {name} | failed: {problem.message} |", flush=True)
    print(f"\n{len(names) - failed} of {len(names)} imported")


def show_large() -> None:
    import transformers

    with torch.device("meta"):
        module = transformers.LlamaForCausalLM(transformers.LlamaConfig(use_cache=False)).eval()
        tokens = torch.zeros(1, 2048, dtype=torch.long)
    began = perf_counter()
    graph = from_torch(module, (), {"input_ids": tokens}).graph
    seconds = perf_counter() - began
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"Llama-2 7B, 2,048 tokens: {seconds:.1f} s, {peak_gb:.2f} GB at most, "
          f"{len(graph.assigned)} pieces ({len(set(signatures(graph))) - 1} distinct), "
          f"{graph.flops.sum() / 1e12:.2f} TFLOP")  # fmt: skip


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)  # as each device has: sums in another order have other last bits
    if sys.argv[1:] == ["--large"]:
        show_large()
    else:
        show(sys.argv[1:] or [*MODELS, *TRANSFORMERS])


if __name__ == "__main__":
    main()
