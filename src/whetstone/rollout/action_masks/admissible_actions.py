"""Action mask of the admissible actions of an environment, or those of a script, that fades over training."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whetstone.chat import Message
from whetstone.plugins import OptionError, find_part
from whetstone.rollout.protocol import ALLOWED_LOGPROB, EpisodeState, StepOutcome
from whetstone.tools.thread_runner import call_user_function


def mask_fraction(step: int, *, fraction: float, fade_updates: int) -> float:
    """Return the fraction of masked turns at update g: fraction · max(0, 1 − g / fade_updates).

    Args:
        step: Number of updates g so far.
        fraction: Fraction at the first update, from 0 to 1.
        fade_updates: Number of updates until no turn is masked; at least 1.
    """
    return fraction * max(0.0, 1 - step / fade_updates)


@dataclass(slots=True, kw_only=True)
class AdmissibleActions:
    """Lets the policy sample only admissible actions in a fraction of turns, which falls to 0 over training (CAMEL).

    Each turn is masked with the probability of `mask_fraction`, independently. In a masked turn the policy samples one
    of the listed actions, token by token, with the model's probabilities normalized over the tokens with which an
    action continues; the turn has no other text. Evaluations have no mask.

    The recorded log-probs of masked tokens are those of the distribution that was sampled, not of the policy. The ratio
    of a masked token in the objective is its probability under the policy over the recorded one, also in the first
    update; the product of the ratios of a turn is the importance weight of its action, at most 1. An objective without
    a ratio, such as `policy_gradient`, trains masked tokens as if the policy had sampled them; set `trained: false` for
    it.

    Source: by analogy to CAMEL, arXiv:2502.11896, whose masks are ranges of continuous actions and whose masked actions
    are stored for off-policy training.
    """

    fade_updates: int
    """Number of updates until no turn is masked."""
    fraction: float = 1.0
    """Fraction of masked turns at the first update, above 0 and at most 1."""
    script: str = ""
    """`package.module:function` of (episode state, admissible actions) → allowed actions, texts or messages; plain or
    async. Empty: all admissible actions."""
    trained: bool = True
    """Whether masked turns are trained; false: they are read and not trained, and only the other turns are."""
    _script: Any = field(init=False, default=None)
    _metrics: dict[str, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.fade_updates < 1:
            raise OptionError("fade_updates", f"must be at least 1 update, got {self.fade_updates}")
        if not 0 < self.fraction <= 1:
            raise OptionError("fraction", f"must be above 0 and at most 1, got {self.fraction:g}")
        if self.script:
            self._script = find_part("action script", self.script, {})

    async def __call__(
        self, state: EpisodeState, admissible: Callable[[], Awaitable[Sequence[str]]], /
    ) -> Sequence[str | Message] | None:
        """Return the actions that the next turn can take, or None; see `ActionMask.__call__`."""
        key = state.episode_key
        draw = key.random("action mask", key.index, len(state.turns))
        if draw.random() >= mask_fraction(key.step, fraction=self.fraction, fade_updates=self.fade_updates):
            return None
        listed = await admissible()
        if self._script is not None:
            listed = await call_user_function(self._script, state, listed)
        return list(listed) or None

    def observe(self, outcome: StepOutcome, /) -> None:
        """Compute the metrics of a step; see `metrics`."""
        actions = [
            turn.action for group in outcome.groups for trajectory in group.trajectories for turn in trajectory.turns
        ]
        masked = [action.measured[ALLOWED_LOGPROB] for action in actions if ALLOWED_LOGPROB in action.measured]
        known = [math.exp(sum(each)) for each in masked if not any(map(math.isnan, each))]
        self._metrics = {"masked_fraction": len(masked) / len(actions)} if actions else {}
        if known:
            self._metrics["allowed_probability"] = sum(known) / len(known)

    def metrics(self) -> Mapping[str, float]:
        """Return the measured fraction of masked turns, and the policy's probability of the allowed actions.

        `allowed_probability` is the mean over masked turns of the product of the probabilities of all allowed tokens;
        its expectation is the probability with which the policy takes an allowed action without the mask. It requires
        temperature 1 without truncation.
        """
        return self._metrics

    def state(self) -> dict[str, Any]:
        """Return no state: the schedule depends on the update only."""
        return {}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Do nothing: there is no state."""
