"""A small run: the demo with a model of a few thousand parameters and two steps per stage."""

import asyncio
import random
from contextlib import contextmanager

import pytest

from whetstone.algorithms import TokenLoss
from whetstone.data.offline_episodes import mark_offline
from whetstone.environments import ENVIRONMENTS
from whetstone.errors import ToolError
from whetstone.recipe import DataSettings, load_recipe
from whetstone.reporting import Progress
from whetstone.trajectory import Score, Task

SMALL = [
    "policy.tiny.hidden_size=16",
    "policy.tiny.num_heads=2",
    "policy.tiny.num_layers=1",
    "policy.tiny.intermediate_size=16",
    "supervised.steps=2",
    "supervised.batch_size=4",
    "reinforcement.steps=2",
    "reinforcement.tasks_per_step=2",
    "rollout.group_size=2",
    "rollout.max_new_tokens=6",
    "evaluation.episodes=4",
]


def in_miniature(name, request):
    """Return `SMALL` with the requirements of a built-in recipe; skip the test if they are missing."""
    recipe, extra = load_recipe(name).recipe, []
    own = recipe.own_stages
    if recipe.policy.path is not None:  # it is large and not available
        extra = ["policy.path=null", "policy.lora=null"]
    if recipe.tasks.source == "gsm8k":
        extra = [f"tasks.path={request.getfixturevalue('gsm8k_folder')}"]
    for need in getattr(ENVIRONMENTS.get(recipe.environment.name), "needs", ()):
        if not need.is_installed:
            pytest.skip(f"{need.name} is not installed: {need.command}")
    if getattr(recipe.reinforcement, "minibatches", 1) > 2:
        extra += ["reinforcement.tasks_per_step=4"]  # each update has its own group
    stage = next(kind for kind in ("reinforcement", "sampling") if kind in own)
    if any((below.get("supervised") or {}).get("data") for below in recipe.stages):  # it imitates solved episodes
        extra += [TEACHING]
    return [*(change.replace("reinforcement.", f"{stage}.") for change in SMALL), *extra]


TEACHING = "reward=support.small:parity"
"""What an untrained model samples is never right; this reward differs between samples all the same."""


async def parity(trajectory, task):
    """Score 1 if the sum of the sampled ids is odd; always a success, so that experts are used."""
    return Score(float(sum(sum(turn.action.ids) for turn in trajectory.turns) % 2), success=True)


async def solve_every_second(trajectory, task):
    """Solve every second episode of a group, so that each group has pairs of a better and a worse episode."""
    solved = bool(int(trajectory.id.rpartition("#")[2]) % 2)
    return Score(float(solved), success=solved)


async def alternating(trajectory, task):
    """Return 1 for every second episode of a group, so that advantages differ from 0 without a seed."""
    return Score(float(int(trajectory.id.rpartition("#")[2]) % 2), success=True)


async def slowly(trajectory, task):
    """Score `parity` after a delay that varies between episodes and runs."""
    await asyncio.sleep(random.random() * 0.02)
    return await parity(trajectory, task)


async def now_and_then_for_ever(trajectory, task):
    """Score `parity`; every fifth group takes a long time."""
    name = trajectory.id.split("/")[0]
    if name.startswith("group-") and int(name.removeprefix("group-")) % 5 == 1:
        await asyncio.sleep(1.0)
    return await parity(trajectory, task)


async def generous(trajectory, task):
    """Score 1 for everything."""
    return Score(1.0)


async def always_solved(trajectory, task):
    """Return 1 and success for every episode."""
    return Score(1.0, success=True)


async def torn(trajectory, task):
    """Fail after the evaluation."""
    if trajectory.id.startswith("group-"):
        raise ConnectionError("the judge is down")
    return await parity(trajectory, task)


async def unjudged(trajectory, task):
    """Fail always."""
    raise ConnectionError("the judge is down")


async def scribe(state):
    """Write a memory."""
    return "shorter"


NOTED = []


def noted(text: str, count: int, tags: list[str]) -> str:
    """Keep the arguments of a call.

    Args:
        text: Any text.
        count: A number.
        tags: Any texts.
    """
    NOTED.append({"text": text, "count": count, "tags": tags})
    return "kept"


def broken(expression: str) -> str:
    """A calculator without batteries.

    Args:
        expression: Anything.
    """
    raise ToolError("no batteries")


class Stopped(Exception):
    """Simulates a kill."""


class StopAfter(Progress):
    """Raise after a number of steps, after they were recorded and before they were saved.

    Args:
    of: The stage whose steps count; None: all except evaluations.
    """

    def __init__(self, steps, *, of=None):
        super().__init__(quiet=True)
        self.left, self.of = steps, of

    @contextmanager
    def stage(self, name, total, *, done=0):
        with super().stage(name, total, done=done) as stage_progress:
            if name == self.of or (self.of is None and not name.startswith("evaluation")):
                stage_progress.advance = self.count
            yield stage_progress

    def count(self, metrics, *, by=1):
        self.left -= by
        if self.left < 0:
            raise Stopped


def propose(failures, texts, draw):
    """Write an instruction."""
    return [f"new after {len(texts) + 1}"]


async def odd(trajectory, task):
    """Score `parity`, with success if it is 1."""
    score = await parity(trajectory, task)
    expert = any(author == "expert" for turn in trajectory.turns for author in turn.action.authors)
    return Score(score.value, success=bool(score.value) or expert)


class Unrepeatable:
    """An environment that cannot be replayed."""

    replayable = False

    async def reset(self, task, *, seed):
        raise NotImplementedError

    async def step(self, action):
        raise NotImplementedError

    async def close(self):
        """Do nothing."""


SEEN = []
"""Columns an objective was shown."""


def spied(learner_logprobs, old_logprobs, sampler_logprobs, advantages):
    """Compute a plain policy gradient and record its inputs."""
    columns = {"learner_logprobs": learner_logprobs, "old_logprobs": old_logprobs, "sampler_logprobs": sampler_logprobs}
    SEEN.append({name: column.detach().clone() for name, column in columns.items()})
    return TokenLoss(-advantages * learner_logprobs, {})


def harder(outcome, draw):
    """Yield a valid and an invalid task for each played one."""
    for group in outcome.groups:
        kind = group.task.tags["kind"]
        private = {**group.task.private, "answer": 5}
        yield Task(f"harder/{kind}", "Compute 2+3", private, {**group.task.tags})
        yield Task(f"senseless/{kind}", "", private, {**group.task.tags})


def sensible(task):
    """Return whether there is a prompt."""
    return bool(task.prompt)


def unkeepable(outcome, draw):
    """Return a task that cannot be stored."""
    return [Task("odd", "?", {"answer": object()})]


class Bare:
    """Tasks of only a prompt and an answer."""

    def task(self, index):
        return Task(f"bare/{index}", f"Compute {index}+1", {"answer": index + 1}, {"kind": "bare"})

    def held_out(self, count):
        return [self.task(10**6 + index) for index in range(count)]


def reads_logprobs(logprobs, advantages):
    """An objective with a column that other libraries have."""
    return logprobs * advantages


def reads_an_option(learner_logprobs, advantages, limit=0.2):
    """An objective with an option that is no keyword-only parameter."""
    return learner_logprobs * advantages * limit


class Imagined:
    """A source of groups that repeats the groups of a run as `imagined` ones."""

    provenance = "imagined"

    def __init__(self, *, reader, path: str):
        self.groups_of_run = reader.groups(DataSettings(path=path), "reinforcement.sources")

    async def groups(self, first, count):
        repeated = (self.groups_of_run[k % len(self.groups_of_run)] for k in range(first, first + count))
        return [mark_offline(group, "") for group in repeated]
