"""Settings of live learning (`whetstone live`): training on feedback in served conversations."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from whetstone.recipe.settings_base import Part, Settings, coerce_name
from whetstone.recipe.stage_settings import OptimizerSettings


class GuardSettings(Settings):
    """Guard of live learning: periodic evaluation, with rollback of the weights."""

    interval_updates: int = Field(10, ge=1)
    """Number of updates between two evaluations on `evaluation.interval_episodes` held-out tasks."""
    max_drop: float = Field(0.1, gt=0, le=1)
    """Maximum drop of the success rate below the best evaluation; a larger drop restores the best weights."""


class LiveSettings(OptimizerSettings):
    """Live learning (`whetstone live`): training of a served policy on the messages after each answer."""

    steps: int = Field(10**6, ge=1)
    """Maximum number of updates; after it the served weights stay fixed."""
    warmup_fraction: float = Field(0.0, ge=0, le=1)
    """Fraction of `steps` in which the learning rate rises from 0."""
    scorer: Annotated[Part, coerce_name("by_rules")] = Part(name="by_rules")
    """Scorer of an answer from the messages after it; it returns a reward and an optional hint: `by_rules`, or
    `package.module:function` of `FollowUp` → `Feedback`."""
    turns_per_update: int = Field(8, ge=1)
    """Number of judged answers per update."""
    replay_turns: int = Field(0, ge=0)
    """Number of earlier answers, sampled at random, that are added to each update."""
    reward_range: list[float] = Field([-10.0, 10.0], min_length=2, max_length=2)
    """Smallest and largest reward that clients, people and `scorer` can give; other rewards are rejected."""
    reward_weight: float = Field(1.0, ge=0)
    """Weight of the reward of an answer in its advantage; 0 disables training on rewards."""
    hint_weight: float = Field(1.0, ge=0)
    """Weight of the log-ratio of each token with and without the hint in the context; 0 disables training on hints, and
    its forward pass is omitted."""
    intervention: Literal["demonstration", "preference", "reward", "none"] = "demonstration"
    """Training on a message that a person writes instead of the policy: `demonstration` imitates it; `preference`
    prefers it to the policy's answer with the gradient of DPO; `reward` gives the policy's answer −1, and the person's
    message and answers that a watching person accepts 0, relative to the others of the update (RLIF); `none`."""
    intervention_weight: float = Field(1.0, ge=0)
    """Weight of interventions relative to rewards."""
    reference_kl: float = Field(0.0, ge=0)
    """Coefficient of the KL divergence to the initial weights."""
    require_approval: bool = False
    """Train only on episodes that a person approved."""
    in_flight: Literal["drain", "continue", "recompute"] = "recompute"
    """Handling of running answers when weights change, same as `reinforcement.in_flight`."""
    guard: GuardSettings | None = None
    """Rollback of the weights if the success rate on held-out tasks falls; null disables it."""
    redact: str | None = None
    """Redactor of text and tokens before a turn is stored and trained, and of text that people write: `sensitive`
    (secrets, e-mail addresses and phone numbers), or `package.module:function` of a text; null: none."""
    checkpoint_interval_steps: int = Field(10, ge=1)
    """Number of updates between two checkpoints; a step of live learning is one update."""

    @field_validator("reward_range")
    @classmethod
    def _check_reward_range(cls, value: list[float]) -> list[float]:
        if value[0] >= value[1]:
            raise ValueError(f"the smallest reward first, got [{value[0]:g}, {value[1]:g}]")
        return value
