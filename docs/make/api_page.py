"""Page of the Python API: functions, protocols with signatures, and an example of each primitive."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import whetstone
from whetstone.environments.protocol import Environment, Observation, Snapshots, StepResult
from whetstone.inference.protocol import Engine, Generation, Sampling
from whetstone.learning.protocol import Learner
from whetstone.reporting.trackers.protocol import TrackedRun, Tracker
from whetstone.rewards.judges.protocol import Judge as RewardJudge
from whetstone.rewards.judges.protocol import Question
from whetstone.rewards.protocol import GroupReward, Reward
from whetstone.rollout import protocol as rollout
from whetstone.tasks.protocol import Curriculum, Expert, Source
from whetstone.trajectory import Group, Score, Segment, Task, Tokens, Trajectory, Turn

EXAMPLES = Path(__file__).parents[2] / "examples" / "primitives.py"
TOP = """# Interface

*Generated from signatures and docstrings by `make docs`; edit them there.*

The Python functions, the protocols that custom code can implement, and an example of each of the thirteen primitives,
which [a test](../../tests/test_primitives.py) trains. Advantage estimators and losses are on the page of
[methods](methods.md), recipe keys on that of [keys](keys.md).

"""
PROTOCOLS = """## Protocols

A class that has these methods can be used, whatever it inherits. A tool needs no protocol: it is a typed function, or
the public methods of a class ([tools](tools.md)).

"""
DATA = (Task, Score, Tokens, Turn, Trajectory, Group, Segment)
COMPONENTS: dict[str, tuple[str, tuple[type, ...]]] = {
    "An environment": (
        "`environment: package.module:Class`. A game with one command per turn is simpler: [custom "
        "components](../guide/your-own.md#environments).",
        (Environment, Observation, StepResult, Snapshots),
    ),
    "A task source": ("`tasks: {source: package.module:Class}`.", (Source, Expert)),
    "A reward": ("`reward: package.module:function`, plain or async, or a class.", (Reward, GroupReward)),
    "A judge": ("`judge: package.module:Class` of a reward with a judge.", (RewardJudge, Question)),
    "An engine": ("`engine: package.module:Class`.", (Engine, Sampling, Generation)),
    "A learner": ("`learner: package.module:Class`.", (Learner,)),
    "A tracker": ("`trackers: [package.module:Class]`.", (Tracker, TrackedRun)),
}
PRIMITIVES: dict[str, tuple[type, ...]] = {
    "sampling strategy": (rollout.Strategy, rollout.Roller),
    "fork": (rollout.Strategy, rollout.Splice),
    "budget allocation": (rollout.Allocation, rollout.GroupBudget),
    "start states": (rollout.Start, rollout.Demonstrator, rollout.StartPrefix),
    "context transform": (rollout.ContextTransform, rollout.EpisodeState),
    "early stopping": (rollout.Stop, rollout.Siblings),
    "context rewrite": (rollout.Rewrite, rollout.Ask, rollout.RestartContext, rollout.PatchTurn),
    "environment wrapper": (rollout.EnvironmentWrapper, rollout.RewardCallback),
    "replay": (rollout.TrajectoryReplay,),
    "trajectory filter": (rollout.TrajectoryFilter,),
    "dynamic sampling": (rollout.DynamicSampling,),
    "curriculum": (Curriculum,),
    "task source": (Source,),
}
"""Primitive → its protocol, and the types that it receives."""


def api_page() -> str:
    """Return the whole page."""
    parts = [TOP, "## From Python\n\n"]
    parts += [_function(name) for name in whetstone.__all__ if inspect.isfunction(getattr(whetstone, name))]
    parts.append("## Data model\n\nFrozen dataclasses, with the meaning of each field.\n\n")
    parts += [_type(kind) for kind in DATA]
    parts.append(PROTOCOLS)
    for title, (about, kinds) in COMPONENTS.items():
        parts += [f"### {title}\n\n{about}\n\n", *map(_type, kinds)]
    parts.append("## The thirteen primitives\n\nEach with its key, an example and its protocols.\n\n")
    documented: set[type] = set(DATA)
    for _, kinds in COMPONENTS.values():
        documented.update(kinds)
    for name, (key, code) in examples().items():
        parts += [f"### {name.capitalize()}\n\n`{key}`\n\n```python\n{code}```\n\n"]
        parts += [_type(kind) for kind in PRIMITIVES[name] if kind not in documented]
        documented.update(PRIMITIVES[name])
    parts.append("### State\n\nA component with state has these methods, too.\n\n")
    parts += [_type(rollout.Stateful), _type(rollout.StepOutcome), _type(rollout.EpisodeKey)]
    return "".join(parts).rstrip() + "\n"


def examples() -> dict[str, tuple[str, str]]:
    """Return primitive → (key, code), from `examples/primitives.py`."""
    fields = re.split(r"^# ([a-z ]+): (\S+=.+)\n", EXAMPLES.read_text(), flags=re.MULTILINE)[1:]
    return {name: (key, code.strip() + "\n") for name, key, code in zip(*[iter(fields)] * 3, strict=True)}


def _function(name: str) -> str:
    function = getattr(whetstone, name)
    signature = f"whetstone.{name}{_signature(function)}"
    return f"### `{name}`\n\n```\n{signature}\n```\n\n{_docstring(inspect.getdoc(function) or '')}\n\n"


def _signature(function: Any) -> str:
    """Format a signature with one parameter per line."""
    signature = inspect.signature(function)
    written, star = [], False
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not star:
            written.append("    *,")
            star = True
        default = "" if p.default is p.empty else f" = {p.default!r}"
        prefix = "**" if p.kind is p.VAR_KEYWORD else ""
        written.append(f"    {prefix}{p.name}: {p.annotation}{default},")
    return "(\n" + "\n".join(written) + f"\n) -> {signature.return_annotation}"


def _docstring(doc: str) -> str:
    """Convert a docstring to Markdown: arguments and errors become lists."""
    text = re.sub(r"\n(Args|Raises|Returns):\n", lambda match: f"\n**{match[1]}**\n\n", doc)
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith("**"):
            inside = True
        elif inside and re.match(r"    \S", line):
            line = re.sub(r"^    (\**[\w, ]+):", r"- `\1`:", line)
        lines.append(line.strip() if inside else line)
    return "\n".join(lines)


def _type(kind: type) -> str:
    """Format a class without bodies: fields and methods with their docs."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    rows = list(_members(node))
    about = (inspect.getdoc(kind) or "").partition("\n\nRaises:")[0]
    lines = [f"**`{kind.__name__}`** (`{kind.__module__}`): {' '.join(about.split())}\n\n"]
    if rows:
        lines += ["| | |\n| --- | --- |\n"]
        lines += [f"| `{name}` | {text} |\n".replace("|=", "\\|=") for name, text in rows]
        lines.append("\n")
    return "".join(lines)


def _members(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for member, below in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            default = f" = {ast.unparse(member.value)}" if member.value is not None else ""
            default = default if len(default) < 50 and "field(" not in default else " = …"
            about = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
            yield _cell(f"{member.target.id}: {ast.unparse(member.annotation)}{default}"), _text(str(about))
        elif isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and (
            member.name == "__call__" or not member.name.startswith("_")
        ):
            yield _method(member)


def _method(member: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, str]:
    arguments = ast.unparse(member.args)
    arguments = re.sub(r"^self(, /)?(, )?", "", arguments).removesuffix(", /").replace("/, ", "")
    returns = f" -> {ast.unparse(member.returns)}" if member.returns is not None else ""
    is_property = any(isinstance(each, ast.Name) and each.id == "property" for each in member.decorator_list)
    waits = "async " if isinstance(member, ast.AsyncFunctionDef) else ""
    written = f"{member.name}{returns}" if is_property else f"{waits}{member.name}({arguments}){returns}"
    return _cell(written), _text(ast.get_docstring(member) or "")


def _cell(code: str) -> str:
    """Escape bars, which would end the table cell."""
    return code.replace("|", "\\|")


def _text(doc: str) -> str:
    """Return a docstring in one line, without its sections."""
    body = re.split(r"\n\s*(?:Args|Raises|Returns):", doc)[0]
    return " ".join(body.split()).replace("|", "\\|")
