"""Environment wrapper that keeps functions which the agent wrote in successful episodes, and offers them as tools.

Example: an episode defines `area(r)` in `python`, calls it and solves its task; later episodes have the tool `area`.

Note:
    The functions run in the sandbox of the tool whose code defined them, as code of that tool, never in this process.
"""

from __future__ import annotations

import ast
import builtins
import json
import symtable
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from whetstone.bounded_types import Count
from whetstone.chat import Message, ToolCall, ToolSpec
from whetstone.environments import Environment, Observation, StepResult
from whetstone.python_syntax import parse_syntax
from whetstone.rollout.environment_wrappers.delegating_wrapper import EnvironmentProxy
from whetstone.rollout.protocol import RewardCallback, StepOutcome
from whetstone.rollout.task_keys import on_policy_trajectories
from whetstone.trajectory import Task, Trajectory

_MAX_CHARACTERS = 2000
_JSON_TYPES = {
    "int": "integer",
    "float": "number",
    "str": "string",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}


@dataclass(frozen=True, slots=True)
class CreatedTool:
    """Function that an agent wrote."""

    name: str
    source: str
    """Source of the function, which uses only its arguments, its own imports and Python's built-in names."""
    uses: int = 1
    """Number of calls that succeeded in solved episodes."""
    failures: int = 0
    """Number of calls that raised an error, in all episodes."""

    def to_spec(self) -> ToolSpec:
        """Return the declaration of the tool, from signature, annotations and docstring."""
        node = _find_functions(self.source)[self.name]
        count = len(node.args.args) - len(node.args.defaults)
        properties = {
            each.arg: {"type": _JSON_TYPES[ast.unparse(each.annotation)]}
            if each.annotation is not None and ast.unparse(each.annotation) in _JSON_TYPES
            else {}
            for each in node.args.args
        }
        text = (ast.get_docstring(node) or "").strip().splitlines()
        names = ", ".join(properties)
        return ToolSpec(
            self.name,
            text[0] if text else f"{self.name}({names}), a function that worked in an earlier task.",
            {
                "type": "object",
                "properties": properties,
                "required": list(properties)[:count],
                "additionalProperties": False,
            },
        )


def find_reusable_functions(code: str) -> dict[str, str]:
    """Return the source of each top-level function of a program that runs without the rest of the program, by its name.

    Such a function uses only its arguments, its own variables and imports, itself, and Python's built-in names. It has
    no decorator, and only parameters that can be passed by name.

    >>> code = "import math\\ndef double(x):\\n    return 2 * x\\ndef root(x):\\n    return math.sqrt(x)"
    >>> list(find_reusable_functions(code))
    ['double']
    """
    try:
        functions = _find_functions(code)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    sources = {name: ast.unparse(node) for name, node in functions.items() if _is_plain(node)}
    return {
        name: text for name, text in sources.items() if len(text) <= _MAX_CHARACTERS and not _find_globals(name, text)
    }


def _find_functions(code: str) -> dict[str, ast.FunctionDef]:
    tree = parse_syntax(code)
    assert isinstance(tree, ast.Module)
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _is_plain(node: ast.FunctionDef) -> bool:
    arguments = node.args
    others = (arguments.posonlyargs, arguments.kwonlyargs, arguments.vararg, arguments.kwarg, node.decorator_list)
    return not any(others) and not node.name.startswith("_")


def _find_globals(name: str, source: str) -> set[str]:
    """Return the global names, other than its own and Python's, that a function uses."""
    tables, used = list(symtable.symtable(source, name, "exec").get_children()), set()
    while tables:
        table = tables.pop()
        used |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        tables += table.get_children()
    return {each for each in used if each != name and not hasattr(builtins, each)}


class CreatedTools:
    """Offers functions that worked in earlier solved episodes as tools (DynaSaur; tool creation by experience reuse).

    A function is kept if code of a solved episode defined it and called it without an error, and if it runs without the
    rest of that code (`find_reusable_functions`). Equal functions are one. A function whose calls raise errors more
    often than they succeed is removed. Calls of a created tool run in the tool that executes code.

    Source: Nguyen et al. 2024 (DynaSaur), arXiv:2411.01747.

    Args:
        tool: Name of the tool that executes code; its argument is `code`.
        offered: Maximum number of functions that an episode has as tools, those with the most successful calls first.
        capacity: Maximum number of functions that are kept.
    """

    at_evaluation = True

    def __init__(self, *, tool: str = "python", offered: Count = 8, capacity: Count = 50) -> None:
        self.tool, self.offered, self.capacity = tool, offered, capacity
        self.functions: dict[str, CreatedTool] = {}
        """Functions by their syntax tree without name and docstring."""

    def __call__(self, environment: Environment, judge: RewardCallback, /) -> Environment:
        """Wrap the environment of an episode; see `EnvironmentWrapper.__call__`."""
        return _Offering(environment, judge, self)

    def select_tools(self) -> dict[str, CreatedTool]:
        """Return the functions that episodes are offered, by name; the name of a better one hides that of others."""
        ranked = sorted(self.functions.values(), key=lambda each: (each.failures - each.uses, each.name))
        named: dict[str, CreatedTool] = {}
        for each in ranked:
            named.setdefault(each.name, each)
        return dict(list(named.items())[: self.offered])

    def observe(self, outcome: StepOutcome, /) -> None:
        """Count the calls of created tools, and keep new functions of solved episodes."""
        offered = {each.name: key for key, each in self._keys().items()}
        for group in outcome.groups:
            for trajectory in on_policy_trajectories(group):
                self._count_calls(trajectory, offered)
                if trajectory.solved:
                    for name, source in self._called_functions(trajectory):
                        known = self.functions.get(_normalize_source(source), CreatedTool(name, source, uses=0))
                        self.functions[_normalize_source(source)] = replace(known, uses=known.uses + 1)
        useful = {key: each for key, each in self.functions.items() if each.failures <= each.uses}
        best = sorted(useful, key=lambda key: useful[key].failures - useful[key].uses)[: self.capacity]
        self.functions = {key: useful[key] for key in useful if key in best}

    def _keys(self) -> dict[str, CreatedTool]:
        offered = self.select_tools().values()
        return {key: each for key, each in self.functions.items() if each in offered}

    def _count_calls(self, trajectory: Trajectory, offered: Mapping[str, str]) -> None:
        for turn in trajectory.turns:
            for call, record in zip(turn.message.tool_calls, turn.calls, strict=False):
                key = offered.get(call.name)
                if key is not None and key in self.functions:
                    known, right = self.functions[key], record.outcome == "ok"
                    self.functions[key] = replace(
                        known, uses=known.uses + (right and trajectory.solved), failures=known.failures + (not right)
                    )

    def _called_functions(self, trajectory: Trajectory) -> Iterator[tuple[str, str]]:
        """Yield (name, source) of each reusable function that an episode defined and called without an error."""
        defined: dict[str, str] = {}
        called: set[str] = set()
        for turn in trajectory.turns:
            for call, record in zip(turn.message.tool_calls, turn.calls, strict=False):
                if call.name != self.tool or record.outcome != "ok":
                    continue
                code = str(_read_arguments(call).get("code", ""))
                defined |= find_reusable_functions(code)
                called |= _find_called_names(code) if defined else set()
        yield from ((name, source) for name, source in defined.items() if name in called)

    def state(self) -> dict[str, Any]:
        """Return the functions for a checkpoint."""
        return {"functions": [asdict(each) for each in self.functions.values()]}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore the functions of a checkpoint."""
        tools = [CreatedTool(**each) for each in state["functions"]]
        self.functions = {_normalize_source(each.source): each for each in tools}

    def metrics(self) -> dict[str, float]:
        """Return the number of functions that are kept, and of their successful calls."""
        return {
            "functions": float(len(self.functions)),
            "uses": float(sum(each.uses for each in self.functions.values())),
        }


def _read_arguments(call: ToolCall) -> Mapping[str, Any]:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, Mapping) else {}


def _find_called_names(code: str) -> set[str]:
    """Return the names of functions that a program calls, except those called only inside a function."""
    tree = parse_syntax(code)
    assert isinstance(tree, ast.Module)
    outside = [node for node in tree.body if not isinstance(node, ast.FunctionDef)]
    calls = [node.func for statement in outside for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return {name.id for name in calls if isinstance(name, ast.Name)}


def _normalize_source(source: str) -> str:
    """Return the syntax of a function without its name and docstring."""
    (node,) = _find_functions(source).values()
    if ast.get_docstring(node) is not None:
        node.body = node.body[1:] or [ast.Pass()]
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id == node.name:
            each.id = "_"
    node.name = "_"
    return ast.dump(node)


class _Offering(EnvironmentProxy):
    """Environment with created tools; their calls become code of the tool that executes code."""

    def __init__(self, environment: Environment, judge: RewardCallback, how: CreatedTools) -> None:
        super().__init__(environment, judge)
        self.how = how
        self.tools: dict[str, CreatedTool] = {}

    async def reset(self, task: Task, *, seed: int) -> Observation:
        first = await super().reset(task, seed=seed)
        names = {tool.name for tool in first.tools}
        selected = self.how.select_tools() if self.how.tool in names else {}
        self.tools = {name: tool for name, tool in selected.items() if name not in names}
        return replace(first, tools=(*first.tools, *(tool.to_spec() for tool in self.tools.values())))

    async def step(self, action: Message) -> StepResult:
        calls = tuple(self._translate(call) for call in action.tool_calls)
        result = await super().step(replace(action, tool_calls=calls))
        self.actions[-1] = action
        if not result.observation.tools:
            return result
        created = tuple(tool.to_spec() for tool in self.tools.values())
        return replace(result, observation=replace(result.observation, tools=(*result.observation.tools, *created)))

    def _translate(self, call: ToolCall) -> ToolCall:
        if call.name not in self.tools:
            return call
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            return replace(call, name=self.how.tool)  # its arguments are refused there
        code = f"{self.tools[call.name].source}\n\n{call.name}(**{arguments!r})"
        return replace(call, name=self.how.tool, arguments=json.dumps({"code": code}))
