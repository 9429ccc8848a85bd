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


class DemonstrationPrompt(IdentityTransform):
    """Shows worked examples before the task, with a number per stage; none in an evaluation (ICRL).

    With `counts: [[0, 0]]` no example is shown.

    Source: ICRL 2026, arXiv:2603.08068; the stages are an addition.

    Args:
        examples: Worked episodes as text. Those that contain the task's prompt are left out.
        counts: Stages: pairs of the first update and the number of shown examples, which never increases.
    """

    def __init__(self, *, examples: Sequence[str], counts: Sequence[tuple[int, int]] = ((0, 2), (100, 1), (200, 0))):
        self.examples, self.counts = list(examples), step_schedule.check_stages_cover("counts", counts)
        numbers = [count for _, count in counts]
        if numbers != sorted(numbers, reverse=True):
            raise OptionError("counts", f"must not increase, got {numbers}")
        if numbers[0] > len(self.examples):
            raise OptionError("counts", f"must be at most the {len(self.examples)} defined examples, got {numbers[0]}")

    def opening(self, messages: tuple[Message, ...], state: EpisodeState, /) -> tuple[Message, ...]:
        """Insert the examples of the current stage before the task, the same ones for all episodes of a group."""
        episode_key = state.episode_key
        count = int(step_schedule.value_at_step(episode_key.step, self.counts))
        fit = [text for text in self.examples if not episode_key.task.prompt or episode_key.task.prompt not in text]
        chosen = episode_key.random("demonstrations").sample(fit, min(count, len(fit)))
        return prepend_to_task(messages, "\n\n".join(chosen))
