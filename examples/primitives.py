"""One small part of one's own for each of the thirteen primitives that ways to sample, reshape and choose are made of.

Each runs: `whetstone train demo KEY`, with the key that stands above it, from the folder of this file. What each may be
asked, and what it may know, says its protocol (`whetstone.rollout.protocol`, `whetstone.tasks.protocol`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from whetstone.chat import Message, user
from whetstone.environments import Environment, Observation, StepResult
from whetstone.rollout.protocol import (
    Allowance,
    Ask,
    Demonstrator,
    EpisodeKey,
    EpisodeState,
    Judge,
    Roller,
    Siblings,
    StartPrefix,
    StepOutcome,
)
from whetstone.tasks import Arithmetic, Source
from whetstone.trajectory import Author, Group, OffPolicy, RemovalScope, Task, Tokens, Trajectory


# sample: rollout.strategy=primitives:WithGreedy
class WithGreedy:
    """As many episodes as the recipe says, the first of them without chance."""

    def __init__(self, *, group_size: int) -> None:
        self.group_size = group_size

    async def __call__(self, task: Task, roller: Roller) -> Group:
        count = roller.samples(self.group_size)
        drawn = (roller.sample(task, index=i, greedy=i == 0) for i in range(count))
        return Group(task, tuple(await asyncio.gather(*drawn)))


# fork: rollout.strategy=primitives:SecondThoughts
class SecondThoughts:
    """One episode, and others that go on by themselves behind its first turn."""

    provides = frozenset({"forks"})

    def __init__(self, *, group_size: int) -> None:
        self.group_size = group_size

    async def __call__(self, task: Task, roller: Roller) -> Group:
        parent = await roller.sample(task, index=0)
        if len(parent.turns) < 2 or not parent.ended.valid:  # it has no middle to go on from
            rest = [roller.sample(task, index=i) for i in range(1, roller.samples(self.group_size))]
        else:
            rest = [roller.fork(task, parent, turns=1, index=i) for i in range(1, roller.samples(self.group_size))]
        return Group(task, (parent, *await asyncio.gather(*rest)))


# allocate: rollout.budget_allocation=primitives:ShortAtFirst
class ShortAtFirst:
    """Two turns in the first ten steps, then as many as the recipe allows."""

    def __call__(self, occasion: EpisodeKey) -> Allowance:
        return Allowance(max_turns=2 if occasion.step < 10 else None)


# start: rollout.start_states=primitives:BehindTheExpert
class BehindTheExpert:
    """Every second group begins behind the first turn of an expert, whose words are read and not trained."""

    async def __call__(self, occasion: EpisodeKey, guide: Demonstrator) -> StartPrefix | None:
        if occasion.random("start").random() < 0.5:
            return None
        shown, world = await guide.demonstration(occasion.task)
        if len(shown.turns) < 2:
            return None
        first = shown.turns[0]
        read = replace(first, action=Tokens.written(first.action.ids, Author.INSERTED))
        return StartPrefix((read,), world)


# view: rollout.context_transforms=[primitives:TurnsLeft]
class TurnsLeft:
    """Behind what the environment says stands how many turns are left."""

    trained_on, off_policy = "shown", OffPolicy.RECOMPUTE
    at_evaluation = True  # it belongs to the agent, and is there when it is evaluated

    def opening(self, messages: tuple[Message, ...], so_far: EpisodeState) -> tuple[Message, ...]:
        return messages

    def observation(self, messages: tuple[Message, ...], so_far: EpisodeState) -> tuple[Message, ...]:
        return (*messages, user(f"{so_far.max_turns - len(so_far.turns)} left"))


# stop: rollout.early_stopping=[primitives:SameCallTwice]
class SameCallTwice:
    """Ends an episode that makes the same call again."""

    def __call__(self, so_far: EpisodeState, siblings: Siblings) -> bool:
        calls = [(call.name, call.arguments) for turn in so_far.turns for call in turn.message.tool_calls]
        return len(calls) > len(set(calls))


# rewrite: rollout.context_rewrites=[primitives:AsksForASummary]
class AsksForASummary:
    """Behind the third turn the policy is asked, once, for what it knows so far."""

    async def __call__(self, so_far: EpisodeState) -> Ask | None:
        asked = any(turn.aside for turn in so_far.turns)
        return None if asked or len(so_far.turns) != 3 else Ask("What do you know so far?")


# partner: rollout.environment_wrapper=primitives:OneMoreTry
class OneMoreTry:
    """The first wrong answer is told to be wrong."""

    at_evaluation = True

    def __call__(self, environment: Environment, judge: Judge) -> Environment:
        return Doubting(environment, judge)


class Doubting:
    """An environment around another."""

    stateless = False  # it counts, so whoever comes back to its middle leads it there through the actions

    def __init__(self, environment: Environment, judge: Judge) -> None:
        self.environment, self.judge = environment, judge

    def __getattr__(self, name: str) -> object:
        return getattr(self.environment, name)  # whatever else the other has

    async def reset(self, task: Task, *, seed: int) -> Observation:
        self.task, self.said, self.told = task, [], False
        return await self.environment.reset(task, seed=seed)

    async def step(self, action: Message) -> StepResult:
        self.said.append(action)
        result = await self.environment.step(action)
        if not result.terminated or self.told or await self.judge(self.task, self.said):
            return result
        self.told = True
        heard = Observation((*result.observation.messages, user("That is wrong. Once more.")))
        return replace(result, observation=heard, terminated=False, reason=None)

    async def close(self) -> None:
        await self.environment.close()


# inject: rollout.replay=[primitives:BestOfBefore]
class BestOfBefore:
    """A group without a success is given the last one there was of its task."""

    off_policy = OffPolicy.RECOMPUTE

    def __init__(self) -> None:
        self.best: dict[str, Trajectory] = {}

    def __call__(self, group: Group, draw: Random) -> Group:
        stored = self.best.get(group.task.id)
        if stored is None or any(each.solved for each in group.counted):
            return group
        again = replace(stored, id=f"group-{group.number}/again/{stored.id}", parent=None, fork_turn=None)
        return replace(group, trajectories=(*group.trajectories, again))

    def observe(self, heard: StepOutcome) -> None:
        """A step is over; `state` and `load_state` beside it would carry this through a kill."""
        for group in heard.groups:
            for each in group.counted:
                if each.solved:
                    self.best[group.task.id] = each

    def state(self) -> dict[str, object]:
        return {}  # after a kill it begins with nothing

    def load_state(self, state: dict[str, object]) -> None:
        self.best = {}


# select: rollout.trajectory_filters=[primitives:NoMonologues]
class NoMonologues:
    """Episodes without a single call are not learned from; they count in what their siblings are compared with."""

    def __call__(self, groups: Sequence[Group], draw: Random) -> Sequence[Group]:
        return [replace(group, trajectories=tuple(map(self.marked, group.trajectories))) for group in groups]

    def marked(self, trajectory: Trajectory) -> Trajectory:
        calls = any(turn.calls for turn in trajectory.turns)
        return trajectory if calls or trajectory.removal else replace(trajectory, removal=RemovalScope.LOSS_ONLY)


# refill: rollout.dynamic_sampling=primitives:SomeReward
class SomeReward:
    """Groups count that earned anything; others are sampled in their place, three times as many at most."""

    max_tried = 3
    when_exhausted = "continue"

    def __call__(self, group: Group) -> bool:
        return any(reward > 0 for reward in group.rewards)


# task distribution: curriculum=primitives:EveryTaskTwice
class EveryTaskTwice:
    """Each task in two groups, one behind the other."""

    def choose(self, source: Source, first: int, number: int, step: int, draw: Random) -> int:
        return first + number // 2


# task generation: tasks={source: "primitives:AskedPolitely"}
class AskedPolitely(Arithmetic):
    """Tasks made of other tasks. The same index is the same task, always, so that a run can go on anywhere."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)

    def task(self, index: int) -> Task:
        task = super().task(index)
        return replace(task, prompt=f"Please {task.prompt[0].lower()}{task.prompt[1:]}")
