"""Settings of critics and of the implicit process reward model."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from whetstone.recipe.settings_base import Settings, list_changeable_fields


class CriticSettings(Settings):
    """Settings of critics: value heads on the policy's hidden states, trained next to the policy."""

    CHANGES: ClassVar = list_changeable_fields(
        update="weight learning_rate clip epochs warmup_updates target_update_rate pessimism pessimism_coef",
    )

    loss: Literal["squared", "success"] = "squared"
    """Loss of a value: half the squared error; or the cross-entropy of a success probability, for estimators that read
    one."""
    weight: float = Field(0.5, gt=0)
    """Weight of the critic loss, which is added to the objective."""
    learning_rate: float = Field(1e-2, gt=0)
    """Learning rate of the critics' AdamW, on the schedule of the stage; critic heads start untrained."""
    clip: float | None = Field(None, gt=0)
    """Maximum distance of a value from the old value, in units of return, beyond which its error has no gradient; null:
    no limit."""
    epochs: int = Field(1, ge=1)
    """Passes of the critics over a step, the last one together with the policy; advantages are computed again before
    the last."""
    warmup_updates: int = Field(0, ge=0)
    """Number of initial updates that train the critics only, not the policy."""
    target_update_rate: float = Field(0.1, gt=0, le=1)
    """Polyak coefficient of the target critics (0.1: target ← 0.9 target + 0.1 critic at each update). Used by
    estimators that read target critics."""
    detach_backbone: bool = True
    """Whether the gradient of the critic loss stops at the critic heads. false: it also trains the policy's layers."""
    ensemble_size: int = Field(1, ge=1)
    """Number of critics of each kind, with different initial weights. Each critic is trained separately; `advantage`
    reads the estimate that `pessimism` selects."""
    pessimism: Literal["min", "deviation"] = "min"
    """Value estimate of an ensemble: the minimum; or the mean minus `pessimism_coef` standard deviations (RO2O)."""
    pessimism_coef: float = Field(1.0, ge=0)
    """Number of standard deviations that `pessimism: deviation` subtracts; 0 gives the mean."""


class ProcessModelSettings(Settings):
    """Implicit process reward model: a copy of the policy that scores turns by log-ratios.

    It is trained on the outcomes of episodes.
    """

    learning_rate: float = Field(1e-4, gt=0)
    """Learning rate of the process reward model's optimizer."""
    beta: float = Field(0.05, gt=0)
    """Factor of the log-ratios between the process reward model and the policy."""
    pool: Literal["mean", "sum"] = "mean"
    """Whether an episode's score is the mean or the sum over its turns."""
