"""A conversation of several turns over simulated services: files, trades, travel, cars, tickets, messages.

A turn ends with an action that calls nothing; then the user says the next thing. Behind each turn in which something
was to be done, the services must be as the gold calls leave theirs, and what the gold calls returned must have been
returned at some time; the first turn that fails decides.

Easy to get wrong: functions that are withheld are not told of, but they work, as in the benchmark; and a turn in which
nothing is to be done is not checked by itself: what was done in it shows behind the next one.

Source: Patil et al. 2025, the Berkeley Function Calling Leaderboard (V3, multi-turn), `multi_turn_checker`.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whetstone.chat import Message, ToolSpec, tool_result, user
from whetstone.environments.bfcl.package import NEEDS, functions, said_with_new_functions, services
from whetstone.environments.commands import arguments_of
from whetstone.environments.function_calls import offered
from whetstone.environments.protocol import Observation, StepResult
from whetstone.python_syntax import parse_expression
from whetstone.trajectory import Author, CallRecord, EndReason, Task

MOST_STEPS = 20
"""Actions a turn may take in the benchmark."""


class Conversation:
    """Plays `question` over the services of `involved_classes` in the task's private data, which begin in
    `initial_config`; judged by `ground_truth`.

    Ends: terminated behind the last turn; truncated where a turn takes more steps than allowed.

    Args:
        max_steps: Actions a turn may take; the benchmark allows 20.
    """

    replayable = True
    judges = True
    speaks = True

    needs = NEEDS

    def __init__(self, *, max_steps: int = MOST_STEPS) -> None:
        self.max_steps = max_steps
        self._world: World | None = None
        self._gold: World | None = None
        self._private: Mapping[str, Any] = {}
        self._turn = self._steps = 0
        self._called = False
        self._returned: Counter[str] = Counter()
        self._failure = ""

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """What the user says first, and the functions on offer.

        Raises:
            RecipeError: The package of the services is not installed.
        """
        self._private = task.private
        self._world, self._gold = World(task), World(task)
        self._turn = self._steps = 0
        self._called, self._returned, self._failure = False, Counter(), ""
        return Observation(self._said(), self._offered(), author=Author.OTHER_AGENT)

    async def step(self, action: Message) -> StepResult:
        """Carry out the calls, one after the other, or end the turn."""
        assert self._world is not None
        self._steps += 1
        if not action.tool_calls and not action.malformed:
            return self._turn_over()
        answers, records, returned = carried_out(self._world, action)
        self._called = self._called or bool(returned)
        self._returned.update(returned)
        cut = self._steps > self.max_steps
        if cut:
            self._failure = self._failure or f"turn {self._turn}: more than {self.max_steps} steps"
        return StepResult(Observation(answers), truncated=cut, calls=records)

    async def verdict(self) -> Mapping[str, Any]:
        """A success where every turn was right to the end; `why_not` says where it went wrong first."""
        turns: Sequence[Any] = self._private.get("ground_truth", ())
        failure = self._failure or ("" if self._turn >= len(turns) else f"turn {self._turn}: not ended")
        return {"success": not failure, "score": float(not failure), "turns": self._turn, "why_not": failure}

    async def close(self) -> None:
        """Nothing is held."""
        self._world = self._gold = None

    def _turn_over(self) -> StepResult:
        self._failure = self._failure or self._wrong()
        self._turn, self._steps, self._called = self._turn + 1, 0, False
        if self._turn >= len(self._private["question"]):
            return StepResult(Observation(()), terminated=True, reason=EndReason.TERMINATED)
        offers = self._offered() if str(self._turn) in self._private.get("missed_function", {}) else ()
        return StepResult(Observation(self._said(), offers, author=Author.OTHER_AGENT))

    def _wrong(self) -> str:
        """Why the turn that is over was not right; empty where it was."""
        assert self._world is not None
        assert self._gold is not None
        wanted = self._private["ground_truth"][self._turn]
        results = Counter(self._gold.call(*read_call(text))[0] for text in wanted)
        if not wanted:
            return ""
        if not self._called:
            return f"turn {self._turn}: nothing was called"
        for name, service in self._gold.services.items():
            for key, value in vars(service).items():
                if not key.startswith("_") and getattr(self._world.services[name], key) != value:
                    return f"turn {self._turn}: {name}.{key} is not as it should be"
        missing = results - self._returned
        return f"turn {self._turn}: never returned {next(iter(missing))[:80]}" if missing else ""

    def _said(self) -> tuple[Message, ...]:
        said = self._private["question"][self._turn]
        if not said:
            return (user(said_with_new_functions()),)
        return tuple(user(one["content"]) for one in said)

    def _offered(self) -> tuple[ToolSpec, ...]:
        """The functions of all services but those that are left out, or not there yet."""
        later = self._private.get("missed_function", {})
        hidden = {name for turn, names in later.items() if int(turn) > self._turn for name in names}
        hidden |= set(self._private.get("excluded_function", ()))
        described = [each for name in self._private["involved_classes"] for each in functions(name)]
        return tuple(offered(each) for each in described if each["name"] not in hidden)


def carried_out(world: World, action: Message) -> tuple[tuple[Message, ...], tuple[CallRecord, ...], tuple[str, ...]]:
    """Carry out the calls of an action, one after the other: (what the model reads, records, what calls returned)"""
    answers, records, returned = [], [], []
    for call in action.tool_calls:
        arguments = arguments_of(call.arguments)
        if arguments is None:
            result, outcome = "Error during execution: the arguments are no JSON object", "invalid_arguments"
        else:
            result, outcome = world.call(call.name, arguments)
            returned.append(result)
        answers.append(tool_result(result, call_id=call.id))
        records.append(CallRecord(call.name, outcome, 0.0))
    for what in action.malformed:
        answers.append(tool_result(f"error: {what}"))
        records.append(CallRecord("", "malformed_call", 0.0))
    return tuple(answers), tuple(records), tuple(returned)


class World:
    """The services of one side: the agent's, or that of the gold calls."""

    def __init__(self, task: Task) -> None:
        names = task.private["involved_classes"]
        self._set(
            services(
                names, task.private["initial_config"], long_context=task.tags.get("kind", "").endswith("long_context")
            )
        )

    @classmethod
    def of(cls, services: Mapping[str, Any]) -> World:
        """Services that are there already."""
        world = cls.__new__(cls)
        world._set(services)
        return world

    def _set(self, services: Mapping[str, Any]) -> None:
        self.services = services
        self._methods: dict[str, Callable[..., Any]] = {}
        for service in services.values():  # of two methods of one name the later service's counts
            members = inspect.getmembers(service, predicate=inspect.ismethod)
            self._methods |= {method: call for method, call in members if not method.startswith("_")}

    def named(self, name: str, positional: Sequence[Any]) -> dict[str, Any]:
        """Arguments that are given by place, by name."""
        return dict(inspect.signature(self._methods[name]).bind_partial(*positional).arguments)

    def call(self, name: str, named: Mapping[str, Any], positional: Sequence[Any] = ()) -> tuple[str, str]:
        """(what it returned, as a text; what became of the call)."""
        method = self._methods.get(name)
        if method is None:
            return f"Error during execution: name '{name}' is not defined", "unknown_tool"
        try:
            return _text(method(*positional, **named)), "ok"
        except Exception as error:  # whatever a service raises is what the model reads
            return f"Error during execution: {error}", "error"


def _text(result: Any) -> str:
    if isinstance(result, str):
        return result
    if type(result) is dict:
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            return str(result)
    return str(result)


def read_call(text: str) -> tuple[str, dict[str, Any], list[Any]]:
    """A gold call, written as Python: its name, its arguments by name, and those by place."""
    call = parse_expression(text)
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    return call.func.id, named, [ast.literal_eval(value) for value in call.args]
