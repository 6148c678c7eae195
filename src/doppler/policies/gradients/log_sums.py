"""Log-sum-exps over the candidates of every step, with a gradient that is compiled as well."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from doppler.base.arrays import IntArray


def log_sums(values: Tensor, since: IntArray) -> tuple[Tensor, Tensor]:
    r"""(B, n) log-sum-exps, and means by the softmax, of those who take part at each step.

    `values` is (B, n) float64 on the CPU. That of step u takes part from step `since[u]` to u, or
    never where that is more than u; some must at every step t:

    .. math::
        C_t = \{u \ge t : since_u \le t\}, \quad
        L_t = \log \sum_{u \in C_t} e^{x_u}, \quad
        E_t = \sum_{u \in C_t} x_u e^{x_u - L_t}
    """
    found: tuple[Tensor, Tensor] = _LogSums.apply(values, since)  # type: ignore[no-untyped-call]
    return found


class _LogSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, since: IntArray) -> tuple[Tensor, Tensor]:
        from doppler.policies.gradients import kernel

        x, tree = values.detach().contiguous(), kernel.make_tree(values.shape[1])
        log_sum, mean = torch.empty_like(x), torch.empty_like(x)
        ctx.since = np.ascontiguousarray(since)
        kernel.log_sums(x.numpy(), ctx.since, tree, log_sum.numpy(), mean.numpy())
        ctx.save_for_backward(x, log_sum, mean)
        return log_sum, mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_log_sum: Tensor, by_mean: Tensor) -> tuple[Tensor, None]:
        from doppler.policies.gradients import kernel

        x, log_sum, mean = ctx.saved_tensors
        by = (by_log_sum.contiguous(), by_mean.contiguous())
        tree, gradient = kernel.make_tree(x.shape[1]), torch.empty_like(x)
        kernel.log_sums_gradient(
            x.numpy(),
            ctx.since,
            *(t.detach().numpy() for t in (log_sum, mean, *by)),
            tree,
            gradient.numpy(),
        )
        return gradient, None
