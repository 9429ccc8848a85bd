"""Earlier episodes of a task in the context of the policy."""

from __future__ import annotations

import re

from paper_properties import exact
from paper_properties.episodes import make_episode, make_turn
from whetstone.analysis.exact import Figure
from whetstone.chat import user
from whetstone.rollout.context_transforms.own_episodes import OwnEpisodes
from whetstone.rollout.protocol import EpisodeKey, EpisodeState, StepOutcome
from whetstone.seeding import derive_random
from whetstone.trajectory import Group, Task

_ANSWERS = 4


def _choose_answer(prompt: str) -> int:
    """Return a successful answer of the prompt, else the lowest one that the prompt does not show as failed."""
    attempts = [(float(reward), int(answer)) for reward, answer in re.findall(r"reward (\S+):\n(\d)", prompt)]
    solved = [answer for reward, answer in attempts if reward > 0]
    failed = {answer for _, answer in attempts}
    return solved[0] if solved else next(answer for answer in range(_ANSWERS) if answer not in failed)


def _success_by_visit(*, shows_history: bool) -> tuple[list[float], float]:
    """Return the success of each visit over tasks with all four answers, and the metric `gain`."""
    view = OwnEpisodes(episodes=_ANSWERS)
    tasks = [Task(f"t{answer}", "Guess a digit.") for answer in range(_ANSWERS)]
    success = []
    for step in range(_ANSWERS):
        groups = []
        for answer, task in enumerate(tasks):
            state = EpisodeState(EpisodeKey(task, 0, step), context_length=4096)
            (message,) = view.opening((user(task.prompt),), state) if shows_history else (user(task.prompt),)
            guess = _choose_answer(message.text)
            episode = make_episode([make_turn(str(guess))], name=f"{step}-{answer}", reward=float(guess == answer))
            groups.append(Group(task, (episode,), answer))
        view.observe(StepOutcome(step, tuple(groups), {}, derive_random("own history", step)))
        success.append(sum(group.trajectories[0].solved for group in groups) / _ANSWERS)
    return success, view.metrics()["gain"]


@exact(
    "mixture-experts-meets-context-reinforcement-learning",
    of=OwnEpisodes,
    note="by analogy, and without its experts: a scripted policy that reads its attempts",
)
def own_episodes_raise_success_over_visits() -> list[Figure]:
    """A policy that reads its earlier episodes of a task and repeats no failed answer solves visit k of four equally
    frequent answers with probability k/4; the metric `gain` is the rise from the first to the last visit, and 0 without
    the episodes in the context."""
    with_history, gain = _success_by_visit(shows_history=True)
    hidden, no_gain = _success_by_visit(shows_history=False)
    return [
        *(Figure(f"success at visit {k}", "=", k / _ANSWERS, with_history[k - 1]) for k in range(1, _ANSWERS + 1)),
        Figure("metric `gain`", "=", 0.75, gain),
        Figure("success at visit 4 without the episodes", "=", 0.25, hidden[-1]),
        Figure("metric `gain` without the episodes", "=", 0.0, no_gain),
    ]
