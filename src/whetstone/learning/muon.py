"""Muon with a selectable precision for its Newton-Schulz iteration.

PyTorch's Muon runs the iteration in bfloat16, which is 4 to 17 times slower than float32 on a processor without
bfloat16 instructions. The state (`momentum_buffer`) and all options are those of `torch.optim.Muon`.

Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; Liu et al. 2025, arXiv:2502.16982.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_DTYPE = "iteration_dtype"
"""Option of a parameter group, and so part of each checkpoint. In checkpoints without the option, the iteration was
computed in bfloat16."""


class Muon(torch.optim.Muon):
    """`torch.optim.Muon` with the option `iteration_dtype`.

    The precision is stored in the state of the optimizer: training that resumes on another processor keeps it.

    Args:
        params: Matrices, or parameter groups of matrices.
        iteration_dtype: Precision of the Newton-Schulz iteration: `bfloat16` is PyTorch's own step, bit for bit.
        options: Options of `torch.optim.Muon`.
    """

    def __init__(self, params: Any, *, iteration_dtype: str = "bfloat16", **options: Any) -> None:
        super().__init__(params, **options)
        for group in self.param_groups:
            group.setdefault(_DTYPE, iteration_dtype)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the optimizer state, with the iteration precision that it was saved with."""
        super().load_state_dict(state_dict)
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group[_DTYPE] = saved.get(_DTYPE, "bfloat16")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all matrices from their gradients; see `torch.optim.Optimizer.step`."""
        groups = self.param_groups
        if all(group[_DTYPE] == "bfloat16" for group in groups):
            return super().step(closure)  # type: ignore[no-any-return,no-untyped-call]
        loss = closure() if closure is not None else None
        for group in groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._update_matrix(matrix, group)
        return loss

    def _update_matrix(self, matrix: Tensor, group: dict[str, Any]) -> None:
        assert matrix.grad is not None
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix.grad)
        momentum = state["momentum_buffer"]
        momentum.lerp_(matrix.grad, 1 - group["momentum"])
        direction = matrix.grad.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        update = newton_schulz(
            direction.to(getattr(torch, group[_DTYPE])), group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        rate = group["lr"] * _rate_factor(group["adjust_lr_fn"], *matrix.shape)
        matrix.mul_(1 - group["lr"] * group["weight_decay"])
        matrix.add_(update.to(matrix.dtype), alpha=-rate)


def newton_schulz(
    matrix: Tensor, coefficients: tuple[float, float, float], steps: int, epsilon: float = 1e-7
) -> Tensor:
    """Approximate the nearest semi-orthogonal matrix by a quintic Newton-Schulz iteration.

        X <- a X + (b A + c A^2) X,   A = X X^T,   starting at X = M / |M|_F

    The singular values of the result are about 0.7 to 1.2: the coefficients are chosen for speed, not for convergence.

    Args:
        matrix: [m, n], computed in its own precision.
        coefficients: (a, b, c).
        steps: Number of iterations.
        epsilon: Lower bound of the norm.

    Returns:
        [m, n] matrix.
    """
    a, b, c = coefficients
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if is_tall else matrix
    x = x / x.norm().clamp(min=epsilon)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def _rate_factor(adjust: str | None, rows: int, columns: int) -> float:
    """Return the factor on the learning rate for the shape of a matrix, as `torch.optim.Muon` defines it."""
    if adjust == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))
