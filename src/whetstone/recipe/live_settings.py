"""Settings of live learning (`whetstone live`): training on what follows each answer of a policy that is served."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from whetstone.recipe.parts import Part, Settings, named
from whetstone.recipe.stage_settings import OptimizerSettings


class GuardSettings(Settings):
    """Periodic evaluation on `evaluation.interval_episodes` held-out tasks, with rollback of the weights."""

    interval_updates: int = Field(10, ge=1)
    """Updates between two evaluations."""
    max_drop: float = Field(0.1, gt=0, le=1)
    """Maximum drop of the success rate below the best evaluation; a larger drop restores the best weights."""


class LiveSettings(OptimizerSettings):
    """What a policy learns while it is served (`whetstone live`): from what follows each of its answers."""

    steps: int = Field(10**6, ge=1)
    """The most updates that are made; what is served then stays as it is."""
    warmup_fraction: float = Field(0.0, ge=0, le=1)
    """Of `steps`, as of other stages."""
    scorer: Annotated[Part, named("by_rules")] = Part(name="by_rules")
    """What says of an answer, by what followed it, how good it was, and what would have helped: `by_rules`, or
    `package.module:function` of what followed (`Followed`) → `Judgement`."""
    turns_per_update: int = Field(8, ge=1)
    """Judged answers that make an update."""
    replay_turns: int = Field(0, ge=0)
    """Number of earlier answers, sampled at random, that are added to each update."""
    reward_range: list[float] = Field([-10.0, 10.0], min_length=2, max_length=2)
    """Smallest and largest reward that clients, people and `scorer` can give; any other is rejected."""
    reward_weight: float = Field(1.0, ge=0)
    """What an answer's reward counts for; 0: rewards teach nothing."""
    hint_weight: float = Field(1.0, ge=0)
    """What it counts for how much likelier the policy itself, reading the hint, finds each token it said; 0: hints
    teach nothing, and that pass is left out."""
    intervention: Literal["demonstration", "preference", "reward", "none"] = "demonstration"
    """What is learned where a person says something in the policy's place: his words are imitated; they are made
    likelier than the policy's by DPO's gradient; the policy's answer is worth −1, his words and what a person who
    watches lets stand 0, each beside the others of an update (RLIF); or nothing."""
    intervention_weight: float = Field(1.0, ge=0)
    """What that counts for beside rewards."""
    reference_kl: float = Field(0.0, ge=0)
    """Weight of the divergence from the weights it began with."""
    require_approval: bool = False
    """Train only on episodes that a person approved."""
    in_flight: Literal["drain", "continue", "recompute"] = "recompute"
    """What becomes of answers under way when weights change, as of reinforcement."""
    guard: GuardSettings | None = None
    """Rollback of the weights if the success rate on held-out tasks falls; null disables it."""
    redact: str | None = None
    """Redactor of text and tokens before a turn is stored and trained, and of text that people write: `sensitive`
    (secrets, e-mail addresses and phone numbers), or `package.module:function` of a text; null: none."""
    checkpoint_interval_steps: int = Field(10, ge=1)
    """Updates between two checkpoints; a step of live learning is one update."""

    @field_validator("reward_range")
    @classmethod
    def _check_reward_range(cls, value: list[float]) -> list[float]:
        if value[0] >= value[1]:
            raise ValueError(f"the smallest reward first, got [{value[0]:g}, {value[1]:g}]")
        return value
