"""torch.compile(model, backend="doppler"): each graph that Dynamo finds, as a compiled module.

Where Dynamo breaks a graph, each part is compiled for itself. Sizes that Dynamo leaves open are
compiled anew for each value, up to `max_shapes` of them. Where a plan does not pay or cannot be
made, where a gradient is needed, and where results share memory with arguments or with one another,
the part runs as Dynamo found it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from doppler.errors import ConfigError
from doppler.frontends.compilation.compiled_plans import CompileConfig
from doppler.frontends.compiled import CompiledModule, make_compiled

_log = logging.getLogger(__name__)
_COMPILE = ("topology", "backend", "force")  # options beside the fields of CompileConfig


def backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """What torch.compile calls; options are fields of `CompileConfig`, and what `compile` takes.

    >>> module = torch.nn.Linear(4, 2).eval()
    >>> options = {"topology": "cpu2", "force": True, "budget_s": 0.1}
    >>> fast = torch.compile(module, backend=backend, options=options)  # or backend="doppler"
    >>> with torch.no_grad():
    ...     torch.equal(fast(torch.ones(3, 4)), module(torch.ones(3, 4)))
    True
    """
    return DynamoPart(graph, options or {})


class DynamoPart:
    """One graph of Dynamo's, called with its arguments and, among them, the module's weights."""

    def __init__(self, graph: torch.fx.GraphModule, options: Mapping[str, Any]) -> None:
        known = [each.name for each in fields(CompileConfig)]
        unknown = [name for name in options if name not in (*known, *_COMPILE)]
        if unknown:
            hint = f"known: {', '.join((*known, *_COMPILE))}"
            raise ConfigError(f"no option `{unknown[0]}` of the backend doppler", hint=hint)
        config = {name: options[name] for name in known if name in options}
        self._graph, self._config = graph, CompileConfig(**config)
        self._options = {name: options[name] for name in _COMPILE if name in options}
        self._found: dict[Any, CompiledModule | str] = {}  # by weights and other arguments

    def __call__(self, *args: Any) -> Any:
        """What the graph returns."""
        if torch.is_grad_enabled() and any(
            isinstance(x, torch.Tensor) and x.requires_grad for x in args
        ):
            return self._graph(*args)
        weights = {i: x for i, x in enumerate(args) if _is_weight(x)}
        rest = [x for i, x in enumerate(args) if i not in weights]
        key = (tuple(map(id, weights.values())), tuple(map(_kind, args)))
        if key not in self._found:
            if len(self._found) >= self._config.max_shapes:
                return self._graph(*args)
            return self._first(key, args, weights, rest)
        ready = self._found[key]
        if isinstance(ready, str):
            return self._graph(*args)
        return ready(*rest)

    def _first(
        self, key: Any, args: Sequence[Any], weights: Mapping[int, torch.Tensor], rest: list[Any]
    ) -> Any:
        """What the graph itself returns the first time; a plan for the next times, if it pays."""
        results = self._graph(*args)
        if _share_memory(args, results):
            self._found[key] = "results share memory with arguments or with one another"
        else:
            ready = make_compiled(_Bound(self._graph, weights), self._config, **self._options)
            ready.prepare(tuple(rest), {})
            self._found[key] = ready if ready.plan else ready.explain()
        if isinstance(self._found[key], str):
            _log.info("a part runs as Dynamo found it: %s", self._found[key])
        return results


class _Bound(torch.nn.Module):
    """A graph with some of its arguments filled in."""

    def __init__(self, graph: torch.fx.GraphModule, weights: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self._graph_of, self._places = [graph], tuple(weights)  # in a list: no submodule
        for i, weight in weights.items():
            name = f"weight_{i}"
            if isinstance(weight, torch.nn.Parameter):
                self.register_parameter(name, weight)
            else:
                self.register_buffer(name, weight)
        self.eval()

    def forward(self, *rest: Any) -> Any:
        """What the graph returns."""
        left = iter(rest)
        size = len(rest) + len(self._places)
        args = [
            getattr(self, f"weight_{i}") if i in self._places else next(left) for i in range(size)
        ]
        return self._graph_of[0](*args)


def _is_weight(value: Any) -> bool:
    """Whether an argument is a parameter or a buffer of the module, which Dynamo marks."""
    return isinstance(value, torch.nn.Parameter) or (
        isinstance(value, torch.Tensor)
        and getattr(value, "_dynamo_static_input_type", None) is not None
    )


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, value.device
    return type(value), value


def _share_memory(args: Sequence[Any], results: Any) -> bool:
    """Whether a result is made of the memory of an argument, or of that of another result."""
    taken = {_memory(x) for x in args if isinstance(x, torch.Tensor)}
    for each in tree_leaves(results):
        if isinstance(each, torch.Tensor):
            if _memory(each) in taken:
                return True
            taken.add(_memory(each))
    return False


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
