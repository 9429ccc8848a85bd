"""Context transform that selects the number of worked examples per kind of task with a bandit.

Note:
    Without a price, examples that help are shown for ever. On a kind without observations all of them are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from whetstone.chat import Message
from whetstone.plugins import OptionError
from whetstone.rollout.context_transforms.default_transform import IdentityTransform
from whetstone.rollout.context_transforms.insert_text import prepend_to_task
from whetstone.rollout.context_transforms.prompt_population import softmax_probabilities
from whetstone.rollout.protocol import EpisodeState, StepOutcome
from whetstone.trajectory import Group


class ExampleSelection(IdentityTransform):
    """Shows the first n worked examples before a task; a bandit selects n by the rewards on tasks of the same kind.

        v(kind, n) ← v + rate · (mean reward of the group − v)      sampled by softmax((v − price · n) / τ)

    All episodes of a group have the same n. An evaluation takes the best n, the smallest of equal ones, and all
    examples on an unknown kind.

    Source: by analogy with Zhou et al. 2023 (DynaICL), arXiv:2305.11170, whose controller is a model that reads the
    question; here it is a table over a tag of the task.

    Args:
        examples: Worked episodes as text, in the order in which they are shown.
        by: Tag of tasks that defines their kind.
        price: Cost of an example, in units of the reward.
        temperature: Softmax temperature τ.
        rate: Step size of a value per group.
    """

    at_evaluation = True

    def __init__(
        self,
        *,
        examples: Sequence[str],
        by: str = "kind",
        price: float = 0.05,
        temperature: float = 0.1,
        rate: float = 0.2,
    ) -> None:
        if not examples:
            raise OptionError("examples", "must have at least one example")
        if temperature <= 0:
            raise OptionError("temperature", f"must be above 0, got {temperature:g}")
        self.examples, self.by, self.price = list(examples), by, price
        self.temperature, self.rate = temperature, rate
        self.values: dict[str, list[float]] = {}

    def opening(self, messages: tuple[Message, ...], state: EpisodeState, /) -> tuple[Message, ...]:
        """Insert the selected number of examples before the task."""
        episode_key = state.episode_key
        values = self.values.get(self._kind(episode_key.task.tags))
        most = len(self.examples)
        if episode_key.group_size == 1:
            count = most if values is None else self._best_count(values)
        else:
            known = values or [0.5] * (most + 1)
            chances = softmax_probabilities([self._net_value(known, n) for n in range(most + 1)], self.temperature)
            (count,) = episode_key.random("chosen_examples").choices(range(most + 1), chances)
        return prepend_to_task(messages, "\n\n".join(self.examples[:count]))

    def observe(self, outcome: StepOutcome, /) -> None:
        """Update the value of the shown number of examples with the mean reward of each group."""
        for group in outcome.groups:
            if not group.rewards:
                continue
            values = self.values.setdefault(self._kind(group.task.tags), [0.5] * (len(self.examples) + 1))
            count = self._read(group)
            values[count] += self.rate * (fmean(group.rewards) - values[count])

    def state(self) -> dict[str, Any]:
        """Return the values per kind of task for a checkpoint."""
        return {"values": self.values}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore the values of a checkpoint."""
        self.values = {str(kind): [float(value) for value in values] for kind, values in state["values"].items()}

    def metrics(self) -> dict[str, float]:
        """Return `kinds`, the number of observed kinds, and `best_count`, the mean of their best counts."""
        best = [self._best_count(values) for values in self.values.values()]
        return {"kinds": float(len(best)), "best_count": fmean(best) if best else float(len(self.examples))}

    def _best_count(self, values: Sequence[float]) -> int:
        return max(range(len(values)), key=lambda n: (self._net_value(values, n), -n))

    def _net_value(self, values: Sequence[float], count: int) -> float:
        return values[count] - self.price * count

    def _kind(self, tags: Mapping[str, str]) -> str:
        return tags.get(self.by, "")

    def _read(self, group: Group) -> int:
        """Return the number of leading examples that the prompt of a group contains."""
        read = "\n".join(message.text for message in group.trajectories[0].opening)
        count = 0
        while count < len(self.examples) and self.examples[count] in read:
            count += 1
        return count
