"""Context transform with a population of instructions, sampled by their mean rewards and renewed by a proposer.

Note:
    New instructions need an initial weight to be sampled at all, and the first one is never removed.
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
from whetstone.plugins import OptionError, bind_component, unwrap_partial
from whetstone.rollout.context_transforms.default_transform import IdentityTransform
from whetstone.rollout.context_transforms.insert_text import prepend_to_task
from whetstone.rollout.context_transforms.prompt_proposers import PROPOSERS, Proposer
from whetstone.rollout.protocol import EpisodeState, StepOutcome
from whetstone.rollout.task_keys import on_policy_trajectories
from whetstone.trajectory import Group, Trajectory


def softmax_probabilities(weights: Sequence[float], temperature: float) -> list[float]:
    """Return [N] sampling probabilities proportional to exp(w / τ), for weights w and temperature τ.

    Source: INSPO 2025, arXiv:2512.01945
    """
    most = max(weights)
    raised = [math.exp((weight - most) / temperature) for weight in weights]
    return [each / sum(raised) for each in raised]


@dataclass(slots=True)
class _Instruction:
    """Instruction of the population with its weight, a moving average of rewards."""

    text: str
    weight: float
    groups: int = 0
    """Number of groups that sampled the instruction."""


class Instructions(IdentityTransform):
    """Population of instructions: each group samples one, and its mean reward updates the weight (INSPO).

    Every `interval_updates` updates a proposer receives the worst episodes and writes new instructions. If the
    population is full, the worst instruction with enough trials is removed first. With one instruction and no proposer,
    every group has that instruction.

    Source: INSPO 2025, arXiv:2512.01945; rate, pruning and weights of new ones are additions. The paper tries
    candidates on recent questions before they enter. Here they enter with the best weight, and the rewards of the
    groups that sample them are the trial.

    Args:
        texts: Initial instructions; the first is never removed.
        temperature: Softmax temperature τ of the sampling.
        rate: Step size of a weight per group.
        proposer: `recombined`, which needs no model; `{name: endpoint, url: …, model: …}`, a model; or
            `package.module:function`, (failures, the worst first; texts, the best first; random generator) → texts.
            Null: nothing is proposed or removed.
        interval_updates: Number of updates between two changes of the population.
        trials: Minimum number of groups of an instruction before it may be removed.
        max_instructions: Maximum number of instructions.
        failures: Maximum number of stored failed trajectories, those with the lowest rewards.
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
            raise OptionError("texts", f"must have 1 to {max_instructions} texts (max_instructions), got {len(texts)}")
        if temperature <= 0:
            raise OptionError("temperature", f"must be above 0, got {temperature:g}")
        self.temperature, self.rate, self.interval_updates, self.trials = temperature, rate, interval_updates, trials
        self.max_instructions = max_instructions
        self.proposer: Proposer | None = None
        if proposer:
            part = bind_component("proposer", proposer, PROPOSERS)
            self.proposer = part() if inspect.isclass(unwrap_partial(part)) else part
        self.unanswered = 0
        """Number of failed requests to the proposer."""
        self.population = [_Instruction(text, 0.5) for text in texts]
        self.kept_failures = failures
        self._failures: list[tuple[float, str]] = []

    def opening(self, messages: tuple[Message, ...], state: EpisodeState, /) -> tuple[Message, ...]:
        """Insert an instruction before the task: a sampled one for a group, the best one for a group of one."""
        if state.episode_key.group_size == 1:
            best = max(self.population, key=lambda each: each.weight)
            return prepend_to_task(messages, best.text)
        draw = state.episode_key.random("instructions")
        chances = softmax_probabilities([each.weight for each in self.population], self.temperature)
        (chosen,) = draw.choices(self.population, chances)
        return prepend_to_task(messages, chosen.text)

    def observe(self, outcome: StepOutcome, /) -> None:
        """Update the weights of the sampled instructions, and renew the population every `interval_updates` updates."""
        for group in outcome.groups:
            used = self._used(group)
            if used is None or not group.rewards:
                continue
            used.weight += self.rate * (fmean(group.rewards) - used.weight)
            used.groups += 1
            self._failures += [
                (t.score.value, _transcript(t))
                for t in on_policy_trajectories(group)
                if t.score is not None and not t.solved
            ]
        self._failures = sorted(self._failures, key=lambda failure: failure[0])[: self.kept_failures]
        if outcome.step % self.interval_updates == 0:
            self._renew(outcome.draw)

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
        except InfrastructureError:  # a failed server does not end the run; it is counted
            self.unanswered += 1
            return
        weight = in_order[0].weight  # or they would never be sampled
        for text in proposed:
            if len(self.population) < self.max_instructions and text and text not in texts:
                self.population.append(_Instruction(text, weight))

    def _used(self, group: Group) -> _Instruction | None:
        """Return the instruction in the prompt of a group.

        Returns None if the prompt contains no instruction of the population.
        """
        for trajectory in group.trajectories:
            read = "\n".join(message.text for message in trajectory.opening)
            matching = [each for each in self.population if each.text in read]
            if matching:
                return max(matching, key=lambda each: len(each.text))
        return None

    def state(self) -> dict[str, Any]:
        """Return population, stored failures and counters for a checkpoint."""
        rows = [[each.text, each.weight, each.groups] for each in self.population]
        failures = [list(failure) for failure in self._failures]
        return {"population": rows, "failures": failures, "unanswered": self.unanswered}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore the population of a checkpoint."""
        self.population = [_Instruction(*row) for row in state["population"]]
        self._failures = [(float(reward), text) for reward, text in state["failures"]]
        self.unanswered = int(state.get("unanswered", 0))

    def metrics(self) -> dict[str, float]:
        """Return population size `count`, `best_weight`, and `unanswered`, the number of failed proposer requests."""
        best = max(each.weight for each in self.population)
        return {"count": float(len(self.population)), "best_weight": best, "unanswered": float(self.unanswered)}


def _transcript(trajectory: Trajectory) -> str:
    return "\n".join(f"{message.role}: {message.text}" for message in trajectory.messages)
