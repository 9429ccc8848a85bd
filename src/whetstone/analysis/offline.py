"""Is a run on stored episodes to stop, to be held back, to go on, or to be given more data? By what it wrote down,
before anybody plays an episode.

    loss on what is learned from, loss on what is held out, both over the steps → one of five findings

Easy to get wrong: a loss that still falls on what is learned from says nothing. What is held out says it, and it is the
same groups at every look, so that its differences are the policy's.

Source: the conditions are after Kumar et al. 2021, "A Workflow for Offline Model-Free Robotic Reinforcement Learning",
arXiv:2109.10813, which reads a value function's trend and its error; by analogy here the objective's loss, since most
objectives for text agents have no value function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

Finding = Literal["stop", "regularize", "more_data", "continue", "converged", "unknown"]
_RISEN = 0.1
"""Of what the held-out loss had fallen by; a rise by more is no ripple."""
_FALLING = 0.05
"""Of the whole fall; a last third that brings more is not over."""
_APART = 0.5
"""Of the fall on what is learned from; a gap wider than that is of data that were learned by heart."""
_FAR = 1.0
"""Nats a token from whoever drew the episodes; beyond it stored rewards say little of what the policy does."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at held-out groups, and what was learned from around it."""

    step: int
    """The step it stands in front of, from 1."""
    train: float
    """The mean loss of the steps from this look to the next."""
    held_out: float
    kl: float | None = None
    """KL divergence from the policy that sampled the held-out episodes, in nats per token (k3); None if their log-probs
    were not stored."""
    value_loss: float | None = None
    """Loss of the critics on held-out turns."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What is to be done about a stage on stored episodes."""

    finding: Finding
    said: str
    """Why, with the numbers, and which key would do it."""


def looks_of(rows: Sequence[Mapping[str, Any]]) -> list[Look]:
    """The looks of a stage on stored episodes, in order.

    Args:
        rows: Of `metrics.jsonl`.
    """
    steps = [row for row in rows if row["stage"] == "offline"]
    at = [k for k, row in enumerate(steps) if row.get("held_out/loss") is not None]
    found = []
    for place, k in enumerate(at):
        until = at[place + 1] if place + 1 < len(at) else len(steps)
        losses = [row["loss/total"] for row in steps[k:until] if row.get("loss/total") is not None]
        if losses:
            row = steps[k]
            found.append(
                Look(
                    row["step"],
                    fmean(losses),
                    row["held_out/loss"],
                    row.get("held_out/kl"),
                    row.get("held_out/value_loss"),
                )
            )
    return found


def advice(looks: Sequence[Look]) -> Advice:
    """Return the first finding that holds.

    - `regularize`: the policy is more than 1 nat per token from the policy that sampled the episodes, or the held-out
      loss never fell.
    - `stop`: the held-out loss has risen from its minimum by more than a tenth of its fall.
    - `continue`: more than a twentieth of its fall is in the last third of the looks.
    - `more_data`: it is flat, and above the training loss by more than half of the fall of the training loss.
    - `converged`: it is flat and close to the training loss.
    """
    if len(looks) < 3:
        return Advice(
            "unknown",
            f"{len(looks)} looks at held-out groups, 3 or more tell a trend: set offline.held_out above 0, "
            "offline.held_out_interval_steps lower, or more steps",
        )
    first, last = looks[0], looks[-1]
    best = min(looks, key=lambda look: look.held_out)
    fall, risen, learned = first.held_out - best.held_out, last.held_out - best.held_out, first.train - last.train
    trend = f"held-out loss {first.held_out:.3g} → {best.held_out:.3g} (step {best.step}) → {last.held_out:.3g}"
    trend += f", training loss {first.train:.3g} → {last.train:.3g}"
    holding = (
        "a smaller learning_rate, offline.reference_kl, offline.consistency_regularization or adapters (policy.lora) "
        "hold it back"
    )
    if last.kl is not None and last.kl > _FAR:
        reason = f"the KL divergence from the sampling policy is {last.kl:.3g} nats per token; {holding} ({trend})"
        return Advice("regularize", reason)
    if fall <= 0 and risen > 0:
        return Advice("regularize", f"the held-out loss never fell: {trend}; {holding}, or collect more data")
    if risen > _RISEN * fall:
        return Advice("stop", f"{trend}: stop at step {best.step} (offline.steps), or regularize: {holding}")
    late = looks[-max(2, len(looks) // 3 + 1)].held_out - last.held_out
    if late > _FALLING * fall > 0:
        return Advice("continue", f"{trend}, and still falling: more steps (offline.steps)")
    gap = last.held_out - last.train
    if learned > 0 and gap > _APART * learned:
        reason = f"{trend}: the training data is memorized, its loss is {gap:.3g} lower; add episodes or tasks"
        return Advice("more_data", reason)
    return Advice("converged", f"{trend}: converged; evaluate, or continue with reinforcement")
