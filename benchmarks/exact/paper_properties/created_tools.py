"""Functions of solved episodes as tools: merged, removed, and used in later tasks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from random import Random

from paper_properties import exact
from paper_properties.episodes import make_episode
from whetstone.analysis.exact import Figure
from whetstone.chat import Message, ToolCall, assistant
from whetstone.environments import ToolEnvironment
from whetstone.rollout.environment_wrappers.created_tools import CreatedTools, find_reusable_functions
from whetstone.rollout.protocol import StepOutcome
from whetstone.tools import Python
from whetstone.trajectory import Author, Group, Task, Tokens, Trajectory, Turn

Policy = Callable[[int, Sequence[str]], Message]
"""Function of the task's number and the results so far that returns the next action."""
_NUMBERS = range(100, 1000, 97)
_SPELLINGS = (
    "def digit_sum(n):\n    return sum(int(d) for d in str(n))",
    'def digit_sum(n):\n    """Sum the digits."""\n    return sum(int(d) for d in str(n))',
    "def add_digits(n):\n    return sum(int(d) for d in str(n))",
)
_FRAGILE = "def fragile(n):\n    return sum(int(d) for d in str(n)) if n < 300 else [][n]"


def _sum_digits(n: int) -> int:
    return sum(map(int, str(n)))


def _call(name: str, **arguments: object) -> Message:
    return assistant("", ToolCall(name, json.dumps(arguments)))


def _write(source: str) -> Policy:
    """Return a policy that defines a function, calls it on the task's number and answers with its result."""
    name = source[4 : source.index("(")]

    def act(number: int, results: Sequence[str]) -> Message:
        return assistant(results[0]) if results else _call("python", code=f"{source}\n{name}({number})")

    return act


def _compose(number: int, results: Sequence[str]) -> Message:
    """Apply the tool `digit_sum` to the number, then to 7 times its result; answer with the second result."""
    known = [int(each) if re.fullmatch(r"\d+", each) else 0 for each in results]
    if len(known) == 2:
        return assistant(str(known[1]))
    return _call("digit_sum", n=7 * known[0] if known else number)


def _use(name: str) -> Policy:
    def act(number: int, results: Sequence[str]) -> Message:
        return assistant(results[0]) if results else _call(name, n=number)

    return act


async def _play(tools: CreatedTools, number: int, policy: Policy, right: int) -> Trajectory:
    async def judge(task: Task, actions: Sequence[Message]) -> float:
        return 0.0

    environment = tools(ToolEnvironment(tools=[Python(sandbox="unsafe")]), judge)
    await environment.reset(Task(str(number), "?"), seed=0)
    turns, results, ended, action = list[Turn](), list[str](), False, assistant("")
    nothing = Tokens.from_ids((1,), Author.ENVIRONMENT)
    while not ended:
        action = policy(number, results)
        result = await environment.step(action)
        turns.append(Turn(nothing, nothing, action, result.observation.messages, calls=result.calls))
        results += [message.text.strip() for message in result.observation.messages]
        ended = result.terminated
    await environment.close()
    return make_episode(turns, reward=float(action.text == str(right)))


def _learn(tools: CreatedTools, policy: Policy, *, twice: bool = False, numbers: Sequence[int] = _NUMBERS) -> int:
    """Play one step of tasks, let the component observe it, and return the number of solved tasks."""
    episodes = []
    for number in numbers:
        right = _sum_digits(7 * _sum_digits(number)) if twice else _sum_digits(number)
        episodes.append(asyncio.run(_play(tools, number, policy, right)))
    groups = tuple(Group(Task(str(place), "?"), (each,)) for place, each in enumerate(episodes))
    tools.observe(StepOutcome(1, groups, {}, Random(0)))
    return sum(bool(each.solved) for each in episodes)


@exact(
    "dynasaur",
    "evolving-tool-user-creator-training-free",
    of=(CreatedTools, find_reusable_functions),
    note="the policy is scripted; functions are tested by their calls in episodes",
)
def functions_of_solved_tasks_solve_later_ones() -> list[Figure]:
    """Ten tasks ask for a digit sum, and ten later ones for a digit sum of a digit sum, by a policy that only calls
    tools. Three copies of the function with another name or docstring are merged into one tool, with which all later
    tasks are solved, and none with the fixed tools; another body is another tool. Functions of episodes that are not
    solved are not kept, and one that fails in most of its calls is removed."""
    tools, fixed, wrong, fragile = CreatedTools(), CreatedTools(), CreatedTools(), CreatedTools()
    written = sum(_learn(tools, _write(source)) for source in _SPELLINGS)
    _learn(wrong, _write("def digit_sum(n):\n    return n % 9"), numbers=[108, 999])
    _learn(fragile, _write(_FRAGILE), numbers=[111])
    created = len(fragile.functions)
    other = CreatedTools()
    _learn(other, _write(_SPELLINGS[0]))
    _learn(other, _write("def digit_sum(n):\n    return sum(map(int, str(n)))"))
    _learn(fragile, _use("fragile"))
    return [
        Figure("tasks solved by written functions, of 30", "=", 30, written),
        Figure("tools made of three copies", "=", 1, len(tools.functions)),
        Figure("tools made of two different bodies", "=", 2, len(other.functions)),
        Figure("later tasks solved with them, of 10", "=", 10, _learn(tools, _compose, twice=True)),
        Figure("later tasks solved with the fixed tools", "=", 0, _learn(fixed, _compose, twice=True)),
        Figure("tools made of episodes that are not solved", "=", 0, len(wrong.functions)),
        Figure("tools made of a function that raises errors from 300 on", "=", 1, created),
        Figure("the same after 3 calls that succeed and 7 that raise errors", "=", 0, len(fragile.functions)),
    ]
