"""BFCL multi-turn conversations over simulated services: files, trades, travel, cars, tickets, messages.

A turn ends with an action without calls; then the user sends the next message. After each turn with gold calls, the
state of the services must equal that after the gold calls, and the results of the gold calls must have been returned at
some time. The first turn that fails decides.

Note:
    Withheld functions are not offered but work, as in the benchmark. A turn without gold calls is not checked by
        itself: its changes affect the check after the next turn.

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
from whetstone.environments.bfcl.package import NEEDS, load_services, new_functions_message, service_functions
from whetstone.environments.function_calls import function_spec
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.text_actions import parse_or_none
from whetstone.python_syntax import parse_expression
from whetstone.trajectory import Author, CallRecord, EndReason, Task

MAX_STEPS = 20
"""Maximum number of actions per turn in the benchmark."""


class BfclConversation:
    """Environment that plays a multi-turn conversation of BFCL over its services.

    The task's private data have the user's messages (`question`), the names of the services (`involved_classes`), their
    initial state (`initial_config`) and the gold calls (`ground_truth`).

    Ends: terminated after the last turn; truncated if a turn takes more steps than allowed.

    Args:
        max_steps: Maximum number of actions per turn; the benchmark allows 20.
    """

    replayable = True
    judges = True
    speaks = True

    needs = NEEDS

    def __init__(self, *, max_steps: int = MAX_STEPS) -> None:
        self.max_steps = max_steps
        self._world: ServiceState | None = None
        self._gold: ServiceState | None = None
        self._private: Mapping[str, Any] = {}
        self._turn = self._steps = 0
        self._called = False
        self._returned: Counter[str] = Counter()
        self._failure = ""

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Load the services and return the user's first message and the offered functions.

        Raises:
            RecipeError: If the package of the services is not installed.
        """
        self._private = task.private
        self._world, self._gold = ServiceState(task), ServiceState(task)
        self._turn = self._steps = 0
        self._called, self._returned, self._failure = False, Counter(), ""
        return Observation(self._user_messages(), self._offered_tools(), author=Author.OTHER_AGENT)

    async def step(self, action: Message) -> StepResult:
        """Execute the calls of an action in order; an action without calls ends the turn."""
        assert self._world is not None
        self._steps += 1
        if not action.tool_calls and not action.malformed:
            return self._end_turn()
        answers, records, returned = execute_calls(self._world, action)
        self._called = self._called or bool(returned)
        self._returned.update(returned)
        cut = self._steps > self.max_steps
        if cut:
            self._failure = self._failure or f"turn {self._turn}: more than {self.max_steps} steps"
        return StepResult(Observation(answers), truncated=cut, calls=records)

    async def verdict(self) -> Mapping[str, Any]:
        """Return whether every turn was right; `why_not` describes the first failure."""
        turns: Sequence[Any] = self._private.get("ground_truth", ())
        failure = self._failure or ("" if self._turn >= len(turns) else f"turn {self._turn}: not ended")
        return {"success": not failure, "score": float(not failure), "turns": self._turn, "why_not": failure}

    async def close(self) -> None:
        """Release the simulated services of both sides."""
        self._world = self._gold = None

    def _end_turn(self) -> StepResult:
        """Check the finished turn; return the user's next message or the episode's end."""
        self._failure = self._failure or self._find_failure()
        self._turn, self._steps, self._called = self._turn + 1, 0, False
        if self._turn >= len(self._private["question"]):
            return StepResult(Observation(()), terminated=True, reason=EndReason.TERMINATED)
        offers = self._offered_tools() if str(self._turn) in self._private.get("missed_function", {}) else ()
        return StepResult(Observation(self._user_messages(), offers, author=Author.OTHER_AGENT))

    def _find_failure(self) -> str:
        """Return the reason why the finished turn was wrong; empty if it was right."""
        assert self._world is not None
        assert self._gold is not None
        wanted = self._private["ground_truth"][self._turn]
        results = Counter(self._gold.call_function(*read_call(text))[0] for text in wanted)
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

    def _user_messages(self) -> tuple[Message, ...]:
        """Return the user's messages of the current turn.

        A turn without messages announces added functions.
        """
        messages = self._private["question"][self._turn]
        if not messages:
            return (user(new_functions_message()),)
        return tuple(user(one["content"]) for one in messages)

    def _offered_tools(self) -> tuple[ToolSpec, ...]:
        """Return the functions of all services that are neither excluded nor added later."""
        later = self._private.get("missed_function", {})
        hidden = {name for turn, names in later.items() if int(turn) > self._turn for name in names}
        hidden |= set(self._private.get("excluded_function", ()))
        described = [each for name in self._private["involved_classes"] for each in service_functions(name)]
        return tuple(function_spec(each) for each in described if each["name"] not in hidden)


def execute_calls(
    world: ServiceState, action: Message
) -> tuple[tuple[Message, ...], tuple[CallRecord, ...], tuple[str, ...]]:
    """Execute the calls of an action in order.

    Malformed calls and invalid arguments get an error message instead.

    Returns:
        Messages for the model, call records, and results of the executed calls.
    """
    answers, records, returned = [], [], []
    for call in action.tool_calls:
        arguments = parse_or_none(call.arguments)
        if arguments is None:
            result, outcome = "Error during execution: the arguments are no JSON object", "invalid_arguments"
        else:
            result, outcome = world.call_function(call.name, arguments)
            returned.append(result)
        answers.append(tool_result(result, call_id=call.id))
        records.append(CallRecord(call.name, outcome, 0.0))
    for what in action.malformed:
        answers.append(tool_result(f"error: {what}"))
        records.append(CallRecord("", "malformed_call", 0.0))
    return tuple(answers), tuple(records), tuple(returned)


class ServiceState:
    """Services of one side of a conversation: the agent's, or those of the gold calls.

    Args:
        task: Task whose private data name the services and their initial state.
    """

    def __init__(self, task: Task) -> None:
        names = task.private["involved_classes"]
        self._set(
            load_services(
                names, task.private["initial_config"], long_context=task.tags.get("kind", "").endswith("long_context")
            )
        )

    @classmethod
    def from_services(cls, services: Mapping[str, Any]) -> ServiceState:
        """Create a state from existing services, such as an agent memory.

        Args:
            services: Service objects by name; their public methods are the functions.
        """
        world = cls.__new__(cls)
        world._set(services)
        return world

    def _set(self, services: Mapping[str, Any]) -> None:
        self.services = services
        self._methods: dict[str, Callable[..., Any]] = {}
        for service in services.values():  # the later service overrides methods of the same name
            members = inspect.getmembers(service, predicate=inspect.ismethod)
            self._methods |= {method: call for method, call in members if not method.startswith("_")}

    def bind_arguments(self, name: str, positional: Sequence[Any]) -> dict[str, Any]:
        """Return the positional arguments of a function by parameter name."""
        return dict(inspect.signature(self._methods[name]).bind_partial(*positional).arguments)

    def call_function(self, name: str, named: Mapping[str, Any], positional: Sequence[Any] = ()) -> tuple[str, str]:
        """Call a function of a service; return its result as text, and the outcome.

        An exception of the function is a result with the outcome `error`.

        Args:
            name: Name of the function.
            named: Keyword arguments.
            positional: Positional arguments.
        """
        method = self._methods.get(name)
        if method is None:
            return f"Error during execution: name '{name}' is not defined", "unknown_tool"
        try:
            return _text(method(*positional, **named)), "ok"
        except Exception as error:  # the model reads any exception of a service
            return f"Error during execution: {error}", "error"


def _text(result: Any) -> str:
    """Return a result as text, as the benchmark does: JSON for a dict, else `str`."""
    if isinstance(result, str):
        return result
    if type(result) is dict:
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            return str(result)
    return str(result)


def read_call(text: str) -> tuple[str, dict[str, Any], list[Any]]:
    """Parse a gold call in Python syntax.

    Returns:
        Name of the function, keyword arguments and positional arguments.
    """
    call = parse_expression(text)
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    return call.func.id, named, [ast.literal_eval(value) for value in call.args]
