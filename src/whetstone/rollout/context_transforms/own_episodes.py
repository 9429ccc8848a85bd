"""Context transform that shows a policy its own earlier episodes of the same task (in-context reinforcement learning).

Note:
    An episode must not read episodes of its group. The buffer changes only between steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from whetstone.chat import Message
from whetstone.plugins import OptionError
from whetstone.rollout.context_transforms.default_transform import IdentityTransform
from whetstone.rollout.context_transforms.insert_text import prepend_to_task
from whetstone.rollout.protocol import EpisodeState, StepOutcome
from whetstone.rollout.replay.buffer import Buffer, StoredTrajectory
from whetstone.rollout.task_keys import on_policy_trajectories
from whetstone.trajectory import Trajectory


def format_attempt(trajectory: Trajectory, number: int) -> str:
    """Return an episode as text: its reward, its calls with their results, and its answer.

    Args:
        trajectory: Finished and scored trajectory.
        number: Number of the attempt in the text.
    """
    assert trajectory.score is not None
    lines = [f"Attempt {number}, reward {trajectory.score.value:g}:"]
    for turn in trajectory.turns:
        calls = [f"{call.name}({call.arguments})" for call in turn.message.tool_calls]
        lines += filter(None, (turn.message.text, *calls, *(message.text for message in turn.observation)))
    return "\n".join(lines)


class OwnEpisodes(IdentityTransform):
    """Shows the policy its earlier episodes of the task before the task, from the lowest to the highest reward.

    The episodes are read and not trained. Of a group, the episode with the lowest and the one with the highest reward
    are stored. An episode that does not fit is left out and counted. The metric `gain` is the mean reward of the last
    visit of a task minus that of its first visit, over the tasks that were visited twice or more.

    Sources: Laskin et al. 2022, arXiv:2210.14215 (learning histories in the context); Mixture-of-Experts Meets
    In-Context Reinforcement Learning 2025; the selection is an addition.

    Args:
        episodes: Maximum number of episodes in the prompt: the newest of the task.
        max_characters: Maximum number of characters of all of them.
        context_fraction: Maximum fraction of the model's context, above 0 and at most 1; a token counts as one byte.
        capacity: Maximum number of stored episodes of all tasks.

    Raises:
        OptionError: If an option is out of its range.
    """

    at_evaluation = True

    def __init__(
        self, *, episodes: int = 2, max_characters: int = 2000, context_fraction: float = 0.5, capacity: int = 1024
    ) -> None:
        if episodes < 1 or capacity < episodes:
            raise OptionError("episodes", f"must be from 1 to capacity ({capacity}), got {episodes}")
        if max_characters < 1:
            raise OptionError("max_characters", f"must be 1 or more, got {max_characters}")
        if not 0 < context_fraction <= 1:
            raise OptionError("context_fraction", f"must be above 0 and at most 1, got {context_fraction:g}")
        self.max_characters, self.context_fraction = max_characters, context_fraction
        self.buffer = Buffer(max_per_key=episodes, capacity=capacity)
        self.visits: dict[str, list[float]] = {}
        """Mean reward of the first and of the last visit by task id; one number after one visit."""
        self.num_left_out = 0
        self._context_length = 0

    def opening(self, messages: tuple[Message, ...], state: EpisodeState, /) -> tuple[Message, ...]:
        """Insert the earlier episodes of the task before it, as many as fit."""
        self._context_length = state.context_length
        return prepend_to_task(messages, self._format_history(state.episode_key.task.id)[0])

    def observe(self, outcome: StepOutcome, /) -> None:
        """Store episodes of a step's groups, and the mean rewards of their tasks."""
        for group in outcome.groups:
            ranked = sorted(on_policy_trajectories(group), key=_get_reward)
            if not ranked:
                continue
            for trajectory in ranked if len(ranked) < 2 else (ranked[0], ranked[-1]):
                self.buffer.add(group.task.id, StoredTrajectory(trajectory, outcome.step))
            first = self.visits.get(group.task.id, [])[:1]
            self.visits[group.task.id] = [*first, fmean(map(_get_reward, ranked))]
            self.num_left_out += self._format_history(group.task.id)[1]

    def _format_history(self, task_id: str) -> tuple[str, int]:
        """Return the text of the episodes that fit, and the number of those that do not."""
        limit = self.max_characters
        if self._context_length:
            limit = min(limit, int(self.context_fraction * self._context_length))
        texts: list[tuple[float, str]] = []
        newest = self.buffer.get_trajectories(task_id)[::-1]
        size = 0
        for row in newest:
            text = format_attempt(row.trajectory, 1)
            if size + len(text.encode()) + 2 <= limit:
                texts.append((_get_reward(row.trajectory), text))
                size += len(text.encode()) + 2
        ordered = [text for _, text in sorted(texts, key=lambda pair: pair[0])]
        numbered = [text.replace("Attempt 1", f"Attempt {k}", 1) for k, text in enumerate(ordered, 1)]
        return "\n\n".join(numbered), len(newest) - len(texts)

    def state(self) -> dict[str, Any]:
        """Return the stored episodes and the rewards of visits for a checkpoint."""
        return {"buffer": self.buffer.state(), "visits": self.visits, "left_out": self.num_left_out}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore the state of a checkpoint."""
        self.buffer.load_state(state["buffer"])
        self.visits = {name: list(rewards) for name, rewards in state["visits"].items()}
        self.num_left_out = state["left_out"]

    def metrics(self) -> dict[str, float]:
        """Return the numbers of stored episodes and of episodes too long to be shown, and the mean gain of tasks."""
        gains = [rewards[-1] - rewards[0] for rewards in self.visits.values() if len(rewards) > 1]
        gain = {"gain": fmean(gains)} if gains else {}
        return {"stored": float(len(self.buffer)), "left_out": float(self.num_left_out), **gain}


def _get_reward(trajectory: Trajectory) -> float:
    return trajectory.score.value if trajectory.score is not None else 0.0
