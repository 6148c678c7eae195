"""Experimental: a module that returns a loss, as one graph of its forward and backward pass.

It rests on an interface of torch that is not public, and may change with any version.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from doppler.errors import ModelError
from doppler.frontends.coarsen import PIECES
from doppler.frontends.torch_export import exported, from_program, quiet
from doppler.frontends.torch_model import Named, TorchModel


def joint_model(
    module: torch.nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    coarsen: str | int = PIECES,
) -> TorchModel:
    """The graph of a loss and of its gradients, to be placed and simulated, or run.

    The module returns one number. Gradients are results of the graph, named `gradient.` and the
    parameter; `model.gradients` says which result is which.

    >>> import doppler as dp
    >>> class Loss(torch.nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(x).square().mean()
    >>> model = joint_model(Loss(4, 2), (torch.ones(3, 4),))
    >>> sorted(model.gradients)
    ['bias', 'weight']
    >>> found = gradients(model, "cpu2", dp.place(model.graph, "cpu2", "heft"), torch.ones(3, 4))
    >>> found["weight"].shape
    torch.Size([2, 4])
    """
    try:
        from torch.export.experimental import _export_forward_backward
    except ImportError:
        version = torch.__version__
        raise ModelError(f"torch {version} cannot export a backward pass") from None
    program = exported(module, args, kwargs)
    # Of fused attention torch exports a backward pass that reads what no forward pass returns.
    with quiet(), sdpa_kernel(SDPBackend.MATH):
        try:
            joint = _export_forward_backward(program)
        except Exception as error:  # whatever torch makes of what it cannot differentiate
            reason = str(error).strip().split("\n")[0][:300]
            raise ModelError(
                f"torch cannot export the backward pass: {type(error).__name__}: {reason}",
                hint="the module must return one number that requires a gradient",
            ) from error
    fused = [node for node in joint.graph.nodes if _is_fused_attention(node)]
    if fused:
        raise ModelError(
            f"the backward pass calls `{fused[0].target}`, which torch exports wrongly"
        )
    return from_program(joint, coarsen=coarsen, name=type(module).__name__)


def _is_fused_attention(node: torch.fx.Node) -> bool:
    name = str(node.target)
    return "attention" in name and "backward" in name


def gradients(
    model: TorchModel, topology: Any, assignment: Any, *args: Any, **kwargs: Any
) -> dict[str, torch.Tensor]:
    """The gradient of each parameter, by its name, from one run on the CPU."""
    from doppler.engine.engine import execute

    inputs = model.inputs(*args, **kwargs)
    found = execute(model.graph, topology, assignment, inputs=inputs).outputs
    return {
        name: found[each.name] if isinstance(each, Named) else each
        for name, each in model.gradients.items()
    }
