"""How many worked examples does this question need? A small controller learns it, kind by kind, and saves the rest.

Easy to get wrong: examples that help are shown for ever unless they cost something, and a kind that was never met is no
reason to save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from whetstone.chat import Message
from whetstone.plugins import OptionError
from whetstone.rollout.context_transforms.instructions import softmax
from whetstone.rollout.context_transforms.note import noted
from whetstone.rollout.context_transforms.plain import Untouched
from whetstone.rollout.protocol import EpisodeState, StepOutcome
from whetstone.trajectory import Group


class ChosenExamples(Untouched):
    """The first so many of some examples in front of a task, none to all, by what showing them earned on its kind.

        v(kind, n) ← v + rate · (mean reward of the group − v)      drawn by softmax((v − price · n) / τ)

    A group reads one number of them; an evaluation the best, of equal ones the fewest, and all of them on a kind that
    was never met.

    Source: by analogy with Zhou et al. 2023 (DynaICL), arXiv:2305.11170, whose controller is a model that reads the
        question; here it is a table over a tag of the task.

    Args:
        examples: Worked episodes as text, in the order they are shown in.
        by: The tag of tasks.
        price: What an example costs, in units of the reward.
        temperature: Softmax temperature τ.
        rate: How far a group moves a value.
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
            raise OptionError("examples", "one or more, or there is nothing to choose")
        if temperature <= 0:
            raise OptionError("temperature", f"above 0, got {temperature:g}")
        self.examples, self.by, self.price = list(examples), by, price
        self.temperature, self.rate = temperature, rate
        self.values: dict[str, list[float]] = {}

    def opening(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """As many of the examples as are worth it."""
        occasion = so_far.occasion
        values = self.values.get(self._kind(occasion.task.tags))
        most = len(self.examples)
        if occasion.group_size == 1:
            count = most if values is None else max(range(most + 1), key=lambda n: (self._worth(values, n), -n))
        else:
            known = values or [0.5] * (most + 1)
            chances = softmax([self._worth(known, n) for n in range(most + 1)], self.temperature)
            (count,) = occasion.random("chosen_examples").choices(range(most + 1), chances)
        return noted(messages, "\n\n".join(self.examples[:count]))

    def observe(self, heard: StepOutcome, /) -> None:
        """See `Stateful`."""
        for group in heard.groups:
            if not group.rewards:
                continue
            values = self.values.setdefault(self._kind(group.task.tags), [0.5] * (len(self.examples) + 1))
            count = self._read(group)
            values[count] += self.rate * (fmean(group.rewards) - values[count])

    def state(self) -> dict[str, Any]:
        """See `Stateful`."""
        return {"values": self.values}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """See `Stateful`."""
        self.values = {str(kind): [float(value) for value in values] for kind, values in state["values"].items()}

    def metrics(self) -> dict[str, float]:
        """Kinds that were met, and how many examples are best for them in the mean."""
        best = [max(range(len(values)), key=lambda n: (self._worth(values, n), -n)) for values in self.values.values()]
        return {"kinds": float(len(best)), "best_count": fmean(best) if best else float(len(self.examples))}

    def _worth(self, values: Sequence[float], count: int) -> float:
        return values[count] - self.price * count

    def _kind(self, tags: Mapping[str, str]) -> str:
        return tags.get(self.by, "")

    def _read(self, group: Group) -> int:
        """How many of the examples a group read."""
        read = "\n".join(message.text for message in group.trajectories[0].opening)
        count = 0
        while count < len(self.examples) and self.examples[count] in read:
            count += 1
        return count
