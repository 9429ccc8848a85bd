"""How does tool use begin without supervised data? With worked examples in the prompt, fewer and fewer of them.

Easy to get wrong: all episodes of a group must see the same examples, or the baseline compares unlike things; and an
example must not be the task itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.chat import Message
from whetstone.plugins import OptionError
from whetstone.rollout import step_schedule
from whetstone.rollout.context_transforms.note import noted
from whetstone.rollout.context_transforms.plain import Untouched
from whetstone.rollout.protocol import EpisodeState


class Demonstrations(Untouched):
    """Examples before the task, with a number per stage; none in an evaluation (ICRL).

    With 0 from the first step on, nothing is shown.

    Source: ICRL 2026, arXiv:2603.08068; the stages are ours.

    Args:
        examples: Worked episodes as text. Those that hold the task's own prompt are left out.
        counts: How many are shown: pairs of first update and number, never increasing.
    """

    def __init__(self, *, examples: Sequence[str], counts: Sequence[tuple[int, int]] = ((0, 2), (100, 1), (200, 0))):
        self.examples, self.counts = list(examples), step_schedule.checked("counts", counts)
        shown = [count for _, count in counts]
        if shown != sorted(shown, reverse=True):
            raise OptionError("counts", f"as many as before or fewer, got {shown}")
        if shown[0] > len(self.examples):
            raise OptionError("counts", f"{shown[0]} are to be shown and there are {len(self.examples)} examples")

    def opening(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """The examples in front of it."""
        occasion = so_far.occasion
        count = int(step_schedule.at(occasion.step, self.counts))
        fit = [text for text in self.examples if not occasion.task.prompt or occasion.task.prompt not in text]
        chosen = occasion.random("demonstrations").sample(fit, min(count, len(fit)))
        return noted(messages, "\n\n".join(chosen))
