"""One fixed instruction ages as the policy improves. Several live side by side, drawn by how well they did.

Easy to get wrong: new ones need a weight of their own to be drawn at all, and the first one must never be lost.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any

from whetstone.chat import Message
from whetstone.errors import InfrastructureError
from whetstone.plugins import OptionError, named_part, unbound
from whetstone.rollout.context_transforms.note import noted
from whetstone.rollout.context_transforms.plain import Untouched
from whetstone.rollout.context_transforms.proposers import PROPOSERS, Proposer
from whetstone.rollout.protocol import EpisodeState, StepOutcome
from whetstone.rollout.task_keys import own
from whetstone.trajectory import Group, Trajectory


def softmax(weights: Sequence[float], temperature: float) -> list[float]:
    """Chances in proportion to exp(w / τ).

    Source: INSPO 2025, arXiv:2512.01945
    """
    most = max(weights)
    raised = [math.exp((weight - most) / temperature) for weight in weights]
    return [each / sum(raised) for each in raised]


@dataclass(slots=True)
class _Instruction:
    text: str
    weight: float
    groups: int = 0
    """It was used in."""


class Instructions(Untouched):
    """A population of instructions: a group draws one, and its mean reward moves that one's weight (INSPO).

    Every so many updates a proposer is shown the worst episodes and writes others; where there are as many as there may
    be, the worst that was tried goes first. With one instruction and no proposer it is that instruction, always.

    Source: INSPO 2025, arXiv:2512.01945; rate, pruning and weights of new ones are ours. The paper tries candidates on
        recent questions before they enter; here they enter with the best weight there is, and what the groups that
        draw them earn is the trial.

    Args:
        texts: To begin with; the first is never put out.
        temperature: τ of the draw.
        rate: How far a group moves a weight.
        proposer: `recombined`, which needs no model; `{name: endpoint, url: …, model: …}`, a model; or
            `package.module:function`, (failures, the worst first; texts, the best first; chance) → texts. Null: nothing
            is proposed, and none goes.
        interval_updates: Number of updates between two changes of the population.
        trials: Groups an instruction must have had before it may be put out.
        max_instructions: Maximum number of instructions.
        failures: Failed trajectories kept for the proposer, those with the lowest reward.
    """

    at_evaluation = True

    def __init__(
        self,
        *,
        texts: Sequence[str],
        temperature: float = 0.2,
        rate: float = 0.1,
        proposer: str | dict[str, Any] | None = "recombined",
        interval_updates: int = 10,
        trials: int = 5,
        max_instructions: int = 8,
        failures: int = 16,
    ) -> None:
        if not texts or len(texts) > max_instructions:
            raise OptionError("texts", f"one to {max_instructions} (max_instructions), got {len(texts)}")
        if temperature <= 0:
            raise OptionError("temperature", f"above 0, got {temperature:g}")
        self.temperature, self.rate, self.interval_updates, self.trials = temperature, rate, interval_updates, trials
        self.max_instructions = max_instructions
        self.proposer: Proposer | None = None
        if proposer:
            part = named_part("proposer", proposer, PROPOSERS)
            self.proposer = part() if inspect.isclass(unbound(part)) else part
        self.unanswered = 0
        """How often a proposer could not be asked."""
        self.population = [_Instruction(text, 0.5) for text in texts]
        self.kept_failures = failures
        self._failures: list[tuple[float, str]] = []

    def opening(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """An instruction in front of it: drawn for a group; the best where there is none, as in an evaluation."""
        if so_far.occasion.group_size == 1:
            best = max(self.population, key=lambda each: each.weight)
            return noted(messages, best.text)
        draw = so_far.occasion.random("instructions")
        chances = softmax([each.weight for each in self.population], self.temperature)
        (chosen,) = draw.choices(self.population, chances)
        return noted(messages, chosen.text)

    def observe(self, heard: StepOutcome, /) -> None:
        """See `Stateful`."""
        for group in heard.groups:
            used = self._used(group)
            if used is None or not group.rewards:
                continue
            used.weight += self.rate * (fmean(group.rewards) - used.weight)
            used.groups += 1
            self._failures += [(t.score.value, _told(t)) for t in own(group) if t.score is not None and not t.solved]
        self._failures = sorted(self._failures, key=lambda failure: failure[0])[: self.kept_failures]
        if heard.step % self.interval_updates == 0:
            self._renew(heard.draw)

    def _renew(self, draw: Random) -> None:
        if self.proposer is None:
            return
        tried = [each for each in self.population[1:] if each.groups >= self.trials]
        if len(self.population) == self.max_instructions and tried:
            self.population.remove(min(tried, key=lambda each: each.weight))
        in_order = sorted(self.population, key=lambda each: -each.weight)
        texts = [each.text for each in in_order]
        try:
            proposed = self.proposer([text for _, text in self._failures], texts, draw)
        except InfrastructureError:  # a server that is down takes no run with it; it is counted
            self.unanswered += 1
            return
        weight = in_order[0].weight  # or they would never be drawn
        for text in proposed:
            if len(self.population) < self.max_instructions and text and text not in texts:
                self.population.append(_Instruction(text, weight))

    def _used(self, group: Group) -> _Instruction | None:
        """The instruction a group read."""
        for trajectory in group.trajectories:
            read = "\n".join(message.text for message in trajectory.opening)
            found = [each for each in self.population if each.text in read]
            if found:
                return max(found, key=lambda each: len(each.text))
        return None

    def state(self) -> dict[str, Any]:
        """See `Stateful`."""
        rows = [[each.text, each.weight, each.groups] for each in self.population]
        failures = [list(failure) for failure in self._failures]
        return {"population": rows, "failures": failures, "unanswered": self.unanswered}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """See `Stateful`."""
        self.population = [_Instruction(*row) for row in state["population"]]
        self._failures = [(float(reward), text) for reward, text in state["failures"]]
        self.unanswered = int(state.get("unanswered", 0))

    def metrics(self) -> dict[str, float]:
        """How many there are, the best one's weight, and how often a proposer could not be asked."""
        best = max(each.weight for each in self.population)
        return {"count": float(len(self.population)), "best_weight": best, "unanswered": float(self.unanswered)}


def _told(trajectory: Trajectory) -> str:
    return "\n".join(f"{message.role}: {message.text}" for message in trajectory.messages)
