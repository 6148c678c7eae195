"""The workloads by name."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from doppler.errors import ConfigError, UnknownNameError
from doppler.graph.graph import Graph
from doppler.programs.chainmm import chainmm
from doppler.programs.cholesky import cholesky
from doppler.programs.ffnn import ffnn, mlp
from doppler.programs.llama import attention, llama_block, llama_layer, transformer
from doppler.programs.moe import moe_layer
from doppler.programs.program import Program
from doppler.programs.random_dag import random_dag


@dataclass(frozen=True, slots=True)
class Workload:
    """A named builder of programs, or of graphs that need no sharding."""

    build: Callable[..., Program | Graph]
    parts: int  # to cut it into, if nothing else is said

    @property
    def description(self) -> str:
        """What it is, in a line."""
        return (self.build.__doc__ or "").strip().splitlines()[0]

    @property
    def sizes(self) -> dict[str, Any]:
        """Its parameters and their defaults."""
        return {p.name: p.default for p in inspect.signature(self.build).parameters.values()}


WORKLOADS = {
    "attention": Workload(attention, 4),
    "chainmm": Workload(chainmm, 16),  # App. D: 16 for these two, the number of devices for Llama
    "cholesky": Workload(cholesky, 8),
    "ffnn": Workload(ffnn, 16),
    "llama-block": Workload(llama_block, 4),
    "llama-layer": Workload(llama_layer, 4),
    "mlp": Workload(mlp, 4),
    "moe-layer": Workload(moe_layer, 4),
    "random-dag": Workload(random_dag, 1),
    "transformer": Workload(transformer, 4),
}


def workload(name: str) -> Workload:
    """The workload of that name."""
    if name not in WORKLOADS:
        raise UnknownNameError("workload", name, WORKLOADS)
    return WORKLOADS[name]


def parse_sizes(found: Workload, settings: list[str]) -> dict[str, Any]:
    """Sizes from texts such as `hidden=4096`, with the types of the defaults."""
    sizes: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"size `{setting}` is not of the form name=value")
        if key not in found.sizes:
            raise UnknownNameError("size", key, found.sizes)
        sizes[key] = _parse(key, text, found.sizes[key])
    return sizes


MAX_SIZE = 1 << 31  # of an axis of a tensor
MAX_COUNTS = {"vertices": 1_000_000, "inputs": 1_000_000, "layers": 10_000, "experts": 10_000}
MAX_COUNTS |= {"parts": 128}  # of a Cholesky factorization, which has their cube of tasks


def _checked(key: str, value: int) -> int:
    """The value of a size, unless it is absurd; seeds may be any number."""
    limit = MAX_COUNTS.get(key, MAX_SIZE)
    if value > limit and key != "seed":
        raise ConfigError(f"size {key} is {value}, must be at most {limit}")
    return value


def _parse(key: str, text: str, default: Any) -> Any:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, int):
            return _checked(key, int(float(text)) if float(text).is_integer() else int(text))
        return type(default)(text)
    except ConfigError:
        raise
    except (ValueError, KeyError, OverflowError):
        kind = type(default).__name__
        raise ConfigError(
            f"size {key}=`{text}` is not a {kind}", hint=f"such as {default}"
        ) from None
