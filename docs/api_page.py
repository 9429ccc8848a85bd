"""The page of the interface: what Python offers, every seam with its signatures, and each primitive with an example."""

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
from whetstone.rewards.protocol import Compares, Reward
from whetstone.rollout import protocol as rollout
from whetstone.tasks.protocol import Curriculum, Expert, Source
from whetstone.trajectory import Group, Score, Segment, Task, Tokens, Trajectory, Turn

EXAMPLES = Path(__file__).parent.parent / "examples" / "primitives.py"
TOP = """# Interface

*Written from the signatures and docstrings by `make docs`; change them there.*

What Python offers, the seams that code of yours may stand behind, and an example of each of the thirteen primitives,
each of which [a test](../tests/test_primitives.py) trains. Functions of credit and loss are on the page of
[methods](methods.md), what a recipe may say on that of [keys](keys.md).

"""
OF_SEAMS = """## Seams

Protocols: a class that has these methods fits, whatever it inherits. A tool needs none: it is a typed function, or the
public methods of a class ([tools](tools.md)).

"""
DATA = (Task, Score, Tokens, Turn, Trajectory, Group, Segment)
SEAMS: dict[str, tuple[str, tuple[type, ...]]] = {
    "An environment": (
        "`environment: package.module:Class`. A game of one command a turn is simpler: [your own](your-own.md#worlds).",
        (Environment, Observation, StepResult, Snapshots),
    ),
    "A source of tasks": ("`tasks: {source: package.module:Class}`.", (Source, Expert)),
    "A reward": ("`reward: package.module:function`, plain or async, or a class.", (Reward, Compares)),
    "A judge": ("`judge: package.module:Class` of a reward that asks one.", (RewardJudge, Question)),
    "An engine": ("`engine: package.module:Class`.", (Engine, Sampling, Generation)),
    "A learner": ("`learner: package.module:Class`.", (Learner,)),
    "A tracker": ("`trackers: [package.module:Class]`.", (Tracker, TrackedRun)),
}
PRIMITIVES: dict[str, tuple[type, ...]] = {
    "sample": (rollout.Strategy, rollout.Roller),
    "fork": (rollout.Strategy, rollout.Splice),
    "allocate": (rollout.Allocation, rollout.Allowance),
    "start": (rollout.Start, rollout.Demonstrator, rollout.StartPrefix),
    "view": (rollout.ContextTransform, rollout.EpisodeState),
    "stop": (rollout.Stop, rollout.Siblings),
    "rewrite": (rollout.Rewrite, rollout.Ask, rollout.Reopen, rollout.Repair),
    "partner": (rollout.EnvironmentWrapper, rollout.Judge),
    "inject": (rollout.Replay,),
    "select": (rollout.TrajectoryFilter,),
    "refill": (rollout.DynamicSampling,),
    "task distribution": (Curriculum,),
    "task generation": (Source,),
}
"""Each with what it is asked for and what it is given."""


def api_page() -> str:
    """The whole page."""
    parts = [TOP, "## From Python\n\n"]
    parts += [_function(name) for name in whetstone.__all__ if inspect.isfunction(getattr(whetstone, name))]
    parts.append("## What is passed on\n\nFrozen; each field with its line of meaning.\n\n")
    parts += [_type(kind) for kind in DATA]
    parts.append(OF_SEAMS)
    for title, (said, kinds) in SEAMS.items():
        parts += [f"### {title}\n\n{said}\n\n", *map(_type, kinds)]
    parts.append("## The thirteen primitives\n\nThe key stands above each example, the protocols behind it.\n\n")
    shown: set[type] = set(DATA)
    for _, kinds in SEAMS.values():
        shown.update(kinds)
    for name, (key, code) in examples().items():
        parts += [f"### {name.capitalize()}\n\n`{key}`\n\n```python\n{code}```\n\n"]
        parts += [_type(kind) for kind in PRIMITIVES[name] if kind not in shown]
        shown.update(PRIMITIVES[name])
    parts.append("### What is remembered\n\nA part that learns from how steps went has these, too.\n\n")
    parts += [_type(rollout.Stateful), _type(rollout.StepOutcome), _type(rollout.EpisodeKey)]
    return "".join(parts).rstrip() + "\n"


def examples() -> dict[str, tuple[str, str]]:
    """Primitive → (its key, its code), as `examples/primitives.py` has them."""
    found = re.split(r"^# ([a-z ]+): (\S+=.+)\n", EXAMPLES.read_text(), flags=re.MULTILINE)[1:]
    return {name: (key, code.strip() + "\n") for name, key, code in zip(*[iter(found)] * 3, strict=True)}


def _function(name: str) -> str:
    function = getattr(whetstone, name)
    signature = f"whetstone.{name}{_signature(function)}"
    return f"### `{name}`\n\n```\n{signature}\n```\n\n{_said(inspect.getdoc(function) or '')}\n\n"


def _signature(function: Any) -> str:
    """One parameter a line."""
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


def _said(doc: str) -> str:
    """A docstring as text: arguments and errors become lists."""
    text = re.sub(r"\n(Args|Raises|Returns):\n", lambda found: f"\n**{found[1]}**\n\n", doc)
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith("**"):
            inside = True
        elif inside and re.match(r"    \S", line):
            line = re.sub(r"^    (\**[\w, ]+):", r"- `\1`:", line)
        lines.append(line.strip() if inside else line)
    return "\n".join(lines)


def _type(kind: type) -> str:
    """A class as its source has it, without bodies: fields and methods with what is said of each."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    rows = list(_members(node))
    said = (inspect.getdoc(kind) or "").partition("\n\nRaises:")[0]
    lines = [f"**`{kind.__name__}`** (`{kind.__module__}`): {' '.join(said.split())}\n\n"]
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
            said = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
            yield _cell(f"{member.target.id}: {ast.unparse(member.annotation)}{default}"), _text(str(said))
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
    """Code in a table: a bar would end the cell."""
    return code.replace("|", "\\|")


def _text(said: str) -> str:
    """In one line, its arguments left to the source."""
    body = re.split(r"\n\s*(?:Args|Raises|Returns):", said)[0]
    return " ".join(body.split()).replace("|", "\\|")
