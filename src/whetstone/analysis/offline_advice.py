"""Advice for offline training: stop, regularize, continue, or collect more data, without playing an episode.

    training loss and held-out loss over the steps → one of five findings

Note: A falling training loss is not informative. The held-out loss is, and it uses the same groups at every evaluation,
so that its differences come from the policy.

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
"""Fraction of the fall of the held-out loss; a larger rise is not noise."""
_FALLING = 0.05
"""Fraction of the whole fall; if the last third exceeds it, the loss is still falling."""
_APART = 0.5
"""Fraction of the fall of the training loss; a larger gap to the held-out loss means memorized data."""
_FAR = 1.0
"""KL divergence from the sampling policy, in nats per token; beyond it stored rewards do not represent the policy."""


@dataclass(frozen=True, slots=True)
class HeldOutEvaluation:
    """Loss on held-out groups at one step, with the training loss of the following steps."""

    step: int
    """Step before which the evaluation was made, from 1."""
    train: float
    """Mean training loss of the steps until the next evaluation."""
    held_out: float
    """Mean loss on the held-out groups."""
    kl: float | None = None
    """KL divergence from the policy that sampled the held-out episodes, in nats per token (k3); None if their log-probs
    were not stored."""
    value_loss: float | None = None
    """Loss of the critics on held-out turns."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for an offline stage: stop, regularize, continue, or collect more data."""

    finding: Finding
    """Finding that holds, see `find_advice`."""
    said: str
    """Reason with numbers, and the keys to change."""


def held_out_evaluations(rows: Sequence[Mapping[str, Any]]) -> list[HeldOutEvaluation]:
    """Return the held-out evaluations of an offline stage, in order.

    Args:
        rows: Rows of `metrics.jsonl`.
    """
    steps = [row for row in rows if row["stage"] == "offline"]
    at = [k for k, row in enumerate(steps) if row.get("held_out/loss") is not None]
    evaluations = []
    for place, k in enumerate(at):
        until = at[place + 1] if place + 1 < len(at) else len(steps)
        losses = [row["loss/total"] for row in steps[k:until] if row.get("loss/total") is not None]
        if losses:
            row = steps[k]
            evaluations.append(
                HeldOutEvaluation(
                    row["step"],
                    fmean(losses),
                    row["held_out/loss"],
                    row.get("held_out/kl"),
                    row.get("held_out/value_loss"),
                )
            )
    return evaluations


def find_advice(looks: Sequence[HeldOutEvaluation]) -> Advice:
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
