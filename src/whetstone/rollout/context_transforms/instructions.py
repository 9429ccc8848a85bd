"""One fixed instruction ages as the policy improves. Several live side by side, drawn by how well they did.

Easy to get wrong: new ones need a weight of their own to be drawn at all, and the first one must never be lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any

from whetstone.chat import Message
from whetstone.plugins import OptionError, find_part
from whetstone.rollout.context_transforms.note import noted
from whetstone.rollout.context_transforms.plain import Untouched
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

    Every so many updates the worst is put out and a proposer, shown failures, writes another. With one instruction and
    no proposer it is that instruction, always.

    Source: INSPO 2025, arXiv:2512.01945; rate, pruning and weights of new ones are ours.

    Args:
        texts: To begin with; the first is never put out.
        temperature: τ of the draw.
        rate: How far a group moves a weight.
        proposer: `package.module:function`, (failed trajectories, texts) → texts; empty: nothing is proposed.
        every: Updates between two changes of the population.
        trials: Groups an instruction must have had before it may be put out.
        most: Instructions at most.
        failures: Failed trajectories kept for the proposer, those with the lowest reward.
    """

    at_evaluation = True

    def __init__(
        self,
        *,
        texts: Sequence[str],
        temperature: float = 0.2,
        rate: float = 0.1,
        proposer: str = "",
        every: int = 10,
        trials: int = 5,
        most: int = 8,
        failures: int = 16,
    ) -> None:
        if not texts or len(texts) > most:
            raise OptionError("texts", f"one to {most} (most), got {len(texts)}")
        if temperature <= 0:
            raise OptionError("temperature", f"above 0, got {temperature:g}")
        self.temperature, self.rate, self.every, self.trials, self.most = temperature, rate, every, trials, most
        self.proposer: Callable[[list[str], list[str]], Sequence[str]] | None = None
        if proposer:
            self.proposer = find_part("proposer", proposer, {})
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
        if heard.step % self.every == 0:
            self._renew(heard.draw)

    def _renew(self, draw: Random) -> None:
        if self.proposer is None:
            return
        tried = [each for each in self.population[1:] if each.groups >= self.trials]
        if len(self.population) == self.most and tried:
            self.population.remove(min(tried, key=lambda each: each.weight))
        texts = [each.text for each in self.population]
        failures = [text for _, text in self._failures]
        draw.shuffle(failures)
        weight = max(each.weight for each in self.population)  # or they would never be drawn
        for text in self.proposer(failures, texts):
            if len(self.population) < self.most and text and text not in texts:
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
        return {"population": rows, "failures": [list(failure) for failure in self._failures]}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """See `Stateful`."""
        self.population = [_Instruction(*row) for row in state["population"]]
        self._failures = [(float(reward), text) for reward, text in state["failures"]]

    def metrics(self) -> dict[str, float]:
        """How many there are, and the best one's weight."""
        return {"count": float(len(self.population)), "best_weight": max(each.weight for each in self.population)}


def _told(trajectory: Trajectory) -> str:
    return "\n".join(f"{message.role}: {message.text}" for message in trajectory.messages)
