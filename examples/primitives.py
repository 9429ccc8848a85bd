"""A small custom component for each of the thirteen primitives of sampling, context changes, replay and scheduling.

Each runs with `whetstone train demo KEY` and the key above it, from the folder of this file. The protocols are in
`whetstone.rollout.protocol` and `whetstone.tasks.protocol`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from whetstone.chat import Message, user
from whetstone.environments import Environment, Observation, StepResult
from whetstone.rollout.protocol import (
    Ask,
    Demonstrator,
    EpisodeKey,
    EpisodeState,
    GroupBudget,
    RewardCallback,
    Roller,
    Siblings,
    StartPrefix,
    StepOutcome,
)
from whetstone.tasks import Arithmetic, Source
from whetstone.trajectory import Author, Group, OffPolicy, RemovalScope, Task, Tokens, Trajectory


# sampling strategy: rollout.strategy=primitives:WithGreedy
class WithGreedy:
    """Sample a group of which the first episode is greedy."""

    def __init__(self, *, group_size: int) -> None:
        self.group_size = group_size

    async def __call__(self, task: Task, roller: Roller) -> Group:
        count = roller.samples(self.group_size)
        drawn = (roller.sample(task, index=i, greedy=i == 0) for i in range(count))
        return Group(task, tuple(await asyncio.gather(*drawn)))


# fork: rollout.strategy=primitives:SecondThoughts
class SecondThoughts:
    """Sample one episode, and fork the others from it after its first turn."""

    provides = frozenset({"forks"})

    def __init__(self, *, group_size: int) -> None:
        self.group_size = group_size

    async def __call__(self, task: Task, roller: Roller) -> Group:
        parent = await roller.sample(task, index=0)
        if len(parent.turns) < 2 or not parent.ended.valid:  # too short for a fork
            rest = [roller.sample(task, index=i) for i in range(1, roller.samples(self.group_size))]
        else:
            rest = [roller.fork(task, parent, turns=1, index=i) for i in range(1, roller.samples(self.group_size))]
        return Group(task, (parent, *await asyncio.gather(*rest)))


# budget allocation: rollout.budget_allocation=primitives:ShortAtFirst
class ShortAtFirst:
    """Limit episodes to two turns in the first ten steps."""

    def __call__(self, episode_key: EpisodeKey) -> GroupBudget:
        return GroupBudget(max_turns=2 if episode_key.step < 10 else None)


# start states: rollout.start_states=primitives:BehindTheExpert
class BehindTheExpert:
    """Start every second group after the first turn of an expert, which is context and not trained."""

    async def __call__(self, episode_key: EpisodeKey, guide: Demonstrator) -> StartPrefix | None:
        if episode_key.random("start").random() < 0.5:
            return None
        demonstration, world = await guide.demonstration(episode_key.task)
        if len(demonstration.turns) < 2:
            return None
        first = demonstration.turns[0]
        read = replace(first, action=Tokens.from_ids(first.action.ids, Author.INSERTED))
        return StartPrefix((read,), world)


# context transform: rollout.context_transforms=[primitives:TurnsLeft]
class TurnsLeft:
    """Append the number of remaining turns to each observation."""

    trained_on, off_policy = "shown", OffPolicy.RECOMPUTE
    at_evaluation = True  # it also applies in evaluations

    def opening(self, messages: tuple[Message, ...], state: EpisodeState) -> tuple[Message, ...]:
        return messages

    def observation(self, messages: tuple[Message, ...], state: EpisodeState) -> tuple[Message, ...]:
        return (*messages, user(f"{state.max_turns - len(state.turns)} left"))


# early stopping: rollout.early_stopping=[primitives:SameCallTwice]
class SameCallTwice:
    """End an episode that repeats a call."""

    def __call__(self, state: EpisodeState, siblings: Siblings) -> bool:
        calls = [(call.name, call.arguments) for turn in state.turns for call in turn.message.tool_calls]
        return len(calls) > len(set(calls))


# context rewrite: rollout.context_rewrites=[primitives:AsksForASummary]
class AsksForASummary:
    """Ask the policy after the third turn, once, for a summary."""

    async def __call__(self, state: EpisodeState) -> Ask | None:
        was_asked = any(turn.aside for turn in state.turns)
        return None if was_asked or len(state.turns) != 3 else Ask("What do you know so far?")


# environment wrapper: rollout.environment_wrapper=primitives:OneMoreTry
class OneMoreTry:
    """Reject the first wrong answer and let the policy try again."""

    at_evaluation = True

    def __call__(self, environment: Environment, judge: RewardCallback) -> Environment:
        return Doubting(environment, judge)


class Doubting:
    """Environment that wraps another one."""

    stateless = False  # it has state, so a fork replays the actions

    def __init__(self, environment: Environment, judge: RewardCallback) -> None:
        self.environment, self.judge = environment, judge

    def __getattr__(self, name: str) -> object:
        return getattr(self.environment, name)  # all other attributes

    async def reset(self, task: Task, *, seed: int) -> Observation:
        self.task, self.said, self.told = task, [], False
        return await self.environment.reset(task, seed=seed)

    async def step(self, action: Message) -> StepResult:
        self.said.append(action)
        result = await self.environment.step(action)
        if not result.terminated or self.told or await self.judge(self.task, self.said):
            return result
        self.told = True
        observation = Observation((*result.observation.messages, user("That is wrong. Once more.")))
        return replace(result, observation=observation, terminated=False, reason=None)

    async def close(self) -> None:
        await self.environment.close()


# replay: rollout.replay=[primitives:BestOfBefore]
class BestOfBefore:
    """Add the last successful trajectory of a task to a group without a success."""

    off_policy = OffPolicy.RECOMPUTE

    def __init__(self) -> None:
        self.best: dict[str, Trajectory] = {}

    def __call__(self, group: Group, draw: Random) -> Group:
        stored = self.best.get(group.task.id)
        if stored is None or any(each.solved for each in group.counted):
            return group
        copy = replace(stored, id=f"group-{group.number}/again/{stored.id}", parent=None, fork_turn=None)
        return replace(group, trajectories=(*group.trajectories, copy))

    def observe(self, outcome: StepOutcome) -> None:
        """Store successful trajectories; with `state` and `load_state`, they would survive a resume."""
        for group in outcome.groups:
            for each in group.counted:
                if each.solved:
                    self.best[group.task.id] = each

    def state(self) -> dict[str, object]:
        return {}  # empty after a resume

    def load_state(self, state: dict[str, object]) -> None:
        self.best = {}


# trajectory filter: rollout.trajectory_filters=[primitives:NoMonologues]
class NoMonologues:
    """Exclude episodes without a tool call from the loss; they still count in the baseline."""

    def __call__(self, groups: Sequence[Group], draw: Random) -> Sequence[Group]:
        return [replace(group, trajectories=tuple(map(self.marked, group.trajectories))) for group in groups]

    def marked(self, trajectory: Trajectory) -> Trajectory:
        calls = any(turn.calls for turn in trajectory.turns)
        return trajectory if calls or trajectory.removal else replace(trajectory, removal=RemovalScope.LOSS_ONLY)


# dynamic sampling: rollout.dynamic_sampling=primitives:SomeReward
class SomeReward:
    """Keep groups with a positive reward; resample the others, at most three times."""

    max_tried = 3
    when_exhausted = "continue"

    def __call__(self, group: Group) -> bool:
        return any(reward > 0 for reward in group.rewards)


# curriculum: curriculum=primitives:EveryTaskTwice
class EveryTaskTwice:
    """Sample each task in two consecutive groups."""

    def choose(self, source: Source, first: int, number: int, step: int, draw: Random) -> int:
        return first + number // 2


# task source: tasks={source: "primitives:AskedPolitely"}
class AskedPolitely(Arithmetic):
    """Tasks derived from other tasks. An index always gives the same task, so that a run can resume anywhere."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)

    def task(self, index: int) -> Task:
        task = super().task(index)
        return replace(task, prompt=f"Please {task.prompt[0].lower()}{task.prompt[1:]}")
