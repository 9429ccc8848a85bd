"""Hand-written episodes: a scripted actor in the real collector, and invented trajectories."""

import asyncio
import math

from whetstone.chat import Chat, ToolCall, assistant, tool_result, user
from whetstone.chat.formats import Compact
from whetstone.environments import ToolEnvironment
from whetstone.policies import build_tiny
from whetstone.rewards import exact_number
from whetstone.rollout import (
    Action,
    Collector,
    EpisodeKey,
    EpisodeLimits,
    GroupPlan,
    MethodComponents,
    StepOutcome,
    run_episode,
)
from whetstone.rollout.episode_inputs import EpisodeHooks
from whetstone.seeding import derive_random
from whetstone.tools import pocket_calculator
from whetstone.trajectory import Author, CallRecord, EndReason, Group, Score, Task, Tokens, Trajectory, Turn

TASK = Task("t", "Compute 12*34", {"answer": 408}, {"kind": "product"})
CHAT = Chat(
    build_tiny(["Compute 12*34"] * 9, markers=Compact.markers, hidden=8, heads=1, layers=1).tokenizer, Compact()
)
LIMITS = EpisodeLimits(max_turns=8, context_length=2000, timeout_seconds=20)


def call(expression, name="pocket_calculator"):
    return assistant("", ToolCall(name, f'{{"expression": "{expression}"}}'))


class Says:
    """An actor whose messages count as sampled: `speak` returns a message, or (message, entropy), for a moment."""

    def __init__(self, speak, logprob=-0.5):
        self.speak, self.logprob, self.seen = speak, logprob, []

    async def act(self, moment):
        self.seen.append(moment)
        await asyncio.sleep(0)
        spoken = self.speak(moment)
        message, entropy = spoken if isinstance(spoken, tuple) else (spoken, 1.0)
        ids = CHAT.write(message, moment.tools)
        n = len(ids)
        return Action(
            Tokens.from_samples(ids, logprobs=(self.logprob,) * n, versions=(0,) * n, entropies=(entropy,) * n)
        )

    def leave(self, episode):
        pass


def in_order(*messages):
    """Return one message per turn."""
    return lambda moment: messages[min(moment.turn, len(messages) - 1)]


def one_by_one(*messages):
    """Return one message per call, whatever the turn; the last one repeats."""
    left = list(messages)
    return lambda moment: left.pop(0) if len(left) > 1 else left[0]


def played(speak, *, environment=None, task=TASK, limits=LIMITS, episode_key=None, record=None, **around):
    """Play one episode."""
    actor = speak if isinstance(speak, Says) else Says(speak)
    return asyncio.run(
        run_episode(
            task,
            environment=environment or ToolEnvironment(tools=[pocket_calculator]),
            actor=actor,
            chat=CHAT,
            limits=limits,
            id="e",
            seed=1,
            record=record,
            hooks=EpisodeHooks(episode_key or EpisodeKey(task, 1), **around),
        )
    )


def collected(strategy, speak, *, method=None, environment=None, reward=exact_number, task=TASK, plan=None, **how):
    """Collect a group with a strategy."""
    how = {"limits": LIMITS, "max_in_flight": 64, **how}

    async def main():
        collector = Collector(
            environment=environment or (lambda: ToolEnvironment(tools=[pocket_calculator])),
            actor=speak if isinstance(speak, Says) else Says(speak),
            chat=CHAT,
            reward=reward,
            method=method or MethodComponents(),
            **how,
        )
        return await collector.group(plan or GroupPlan(task, seed=3, name="g/"), strategy)

    return asyncio.run(main())


def turn(text="", *, calls=(), entropy=1.0, observation=None, aside=False, ids=(7, 8)):
    """Return a turn with two tokens; `calls` are outcomes."""
    n = len(ids)
    message = assistant(text, *(ToolCall("pocket_calculator", "{}") for _ in calls))
    answered = (tool_result(observation or "1"),) if calls else ()
    action = Tokens.from_samples(ids, logprobs=(-0.5,) * n, versions=(0,) * n, entropies=(entropy,) * n)
    return Turn(
        Tokens.from_ids((1, 2), Author.ENVIRONMENT),
        action,
        message,
        answered,
        calls=tuple(CallRecord("pocket_calculator", outcome, 0.0) for outcome in calls),
        opens_segment=True,
        aside=aside,
    )


def path(id, reward=0.0, turns=None, *, success=None, marks=(), opening="go", ended=EndReason.TERMINATED, **more):
    """Return a finished trajectory with a reward."""
    score = None if reward is None else Score(float(reward), {}, success=reward > 0 if success is None else success)
    return Trajectory(
        id,
        "t",
        (user(opening),),
        tuple([turn("4")] if turns is None else turns),
        ended,
        score=score,
        marks=tuple(marks),
        **more,
    )


def group(*rewards, task=TASK, number=0, **more):
    """Build a group of invented trajectories; `more` are fields of each."""
    return Group(task, tuple(path(f"{number}/{i}", r, **more) for i, r in enumerate(rewards)), number)


def step_outcome(*groups, step=1, advantages=None):
    """Return the outcome of a step."""
    sizes = {t.id: 1.0 for each in groups for t in each.trajectories} if advantages is None else advantages
    return StepOutcome(step, tuple(groups), sizes, derive_random("heard", step))


def sampler_logprobs(trajectory):
    """Return the log-probability of every action token, NaN if unknown."""
    return [logprob for t in trajectory.turns for logprob in t.action.logprobs]


def known(numbers):
    return [number for number in numbers if not math.isnan(number)]
