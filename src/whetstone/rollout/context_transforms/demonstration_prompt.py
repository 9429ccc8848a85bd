"""Context transform that shows worked examples in the prompt, fewer at each stage, to start tool use without SFT.

Note:
    All episodes of a group must see the same examples, or the baseline compares unequal conditions. An example must not
    be the task itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.chat import Message
from whetstone.plugins import OptionError
from whetstone.rollout import step_schedule
from whetstone.rollout.context_transforms.default_transform import IdentityTransform
from whetstone.rollout.context_transforms.insert_text import prepend_to_task
from whetstone.rollout.protocol import EpisodeState


class Demonstrations(IdentityTransform):
    """Examples before the task, with a number per stage; none in an evaluation (ICRL).

    With 0 from the first step on, nothing is shown.

    Source: ICRL 2026, arXiv:2603.08068; the stages are an addition.

    Args:
        examples: Worked episodes as text. Those that contain the task's prompt are left out.
        counts: Number of shown examples: pairs of first update and number, never increasing.
    """

    def __init__(self, *, examples: Sequence[str], counts: Sequence[tuple[int, int]] = ((0, 2), (100, 1), (200, 0))):
        self.examples, self.counts = list(examples), step_schedule.check_stages_cover("counts", counts)
        numbers = [count for _, count in counts]
        if numbers != sorted(numbers, reverse=True):
            raise OptionError("counts", f"must not increase, got {numbers}")
        if numbers[0] > len(self.examples):
            raise OptionError("counts", f"asks for {numbers[0]} examples, but only {len(self.examples)} are defined")

    def opening(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """Return the messages with the examples before them."""
        occasion = so_far.occasion
        count = int(step_schedule.value_at_step(occasion.step, self.counts))
        fit = [text for text in self.examples if not occasion.task.prompt or occasion.task.prompt not in text]
        chosen = occasion.random("demonstrations").sample(fit, min(count, len(fit)))
        return prepend_to_task(messages, "\n\n".join(chosen))
