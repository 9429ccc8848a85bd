"""The page of tools: what agents can be given, how their calls are written, and what holds foreign code in."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from docstring_parser import parse

from whetstone.chat import FORMATS
from whetstone.sandbox import Ending, Isolation, Limits
from whetstone.tools import TOOLS
from whetstone.tools.protocol import LIFETIME

TOP = """# Tools

*Written from the docstrings by `make docs`; change them there.*

A recipe lists the tools of an episode. A name is enough; a mapping has options, too:

```yaml
environment:
  tools:
    - calculator
    - {name: python, persistence: reset, limits: {wall_seconds: 5, memory_mb: 256}}
    - {name: search, corpus: docs/}
    - {name: sql, url: shop.sqlite}
    - {name: mcp, command: [npx, some-mcp-server]}
    - my_shop:price           # a typed function of yours
    - my_shop:Basket          # a class: its public methods are tools, made anew for each episode
```

Every signature of Python becomes a tool: descriptions, defaults and bounds of `pydantic.Field` apply, parameters can
have any name and kind (positional-only, `*args`, `**kwargs`), and arguments that a `functools.partial` sets are hidden
from the model. A type that JSON cannot express is an error that names the tool and the parameter. A value of any type
is returned as JSON, with the same text in every process: dataclasses, pydantic models, enums, dates, sets (sorted),
arrays, tables, tensors and generators; bytes that are not UTF-8 in base64, NaN as null. An object that shows only its
address is an error.

Arguments are checked as the signature says, strictly: what does not fit comes back as an error the model reads, and is
counted (`CallRecord.outcome`). So do errors, time that is over, and results that are too long, which keep their head
and tail. Calls of one turn run side by side, those to one sandbox one after the other. A backend that fails
(connection, timeout, HTTP 429 and 5xx) is retried, then the episode is played again; see
[failing tools, retries and rate limits](tool-failures.md). Results are shown as text that is only that: control
characters go, and what looks like a token of the chat template is broken up, so that no tool can end its own turn and
open another.

A class may have `open(episode)` and `close()`, plain or async; `tools()` where its tools are not its public methods;
`stateless`, `replayable` and `declared` say what forks and resumed episodes may rely on (`tools/protocol.py`).

A tool that changes something outside of the episode, such as a refund, declares its effect; Whetstone asks before it
calls such a tool for real ([tools with side effects](side-effects.md)).

An MCP server over HTTP that restarts, or whose session expires, costs the episodes that called it: they are played
again, over a new session. A status of HTTP, such as 502, is a failure of infrastructure unless the server still lists
its tools. A process that fails to start twice, before it ever answered, is not started again.

The other way round, `whetstone mcp calculator notes my_shop:price` is an MCP server with these tools.

## The sandbox

`python`, `shell` and `files` run in processes that cannot hurt the machine. `sandbox: auto` takes the strongest layer
there is, and `whetstone doctor` says which that is and what would bring a stronger one:

| `sandbox:` | |
| --- | --- |
"""

TRIED = """
Where control groups are writable, memory and processes of a session are limited together, too. What a call leaves
running is ended when it has answered; what a session holds goes with it, also when the whole program is killed. A
world that was left is given to the next session when nothing and nobody is left in it.

| tried | what comes of it |
| --- | --- |
| an endless loop, a sleep without end, signals blocked | `timeout` or `cpu`; a new interpreter, which is said |
| memory without end | a `MemoryError`, and the interpreter lives; or `memory` |
| forking without end, descriptors without end | the system refuses, the code gets the error, the rest is ended |
| printing without end | `output`; head and tail are kept |
| filling the disk, a million files | the folder is full; `disk` where it is no file system of its own |
| files of the machine, its environment, links and `..` out of the folder | they are not there |
| writing to the interpreter or the system | read-only |
| loopback, the network, names, sockets of the machine | refused |
| `ptrace`, `/proc` of others, killing the supervisor or the host | refused, or not there |
| a fault, `os._exit`, answers that are forged, endless or no JSON | `crashed`, or text of this one call |
| daemons | ended with the call |
| a session falls apart: its first process dead, dumb or talking nonsense | `crashed`; a new one next, which is said |
| the server of sessions dies | calls under way are infrastructure failures, the next session starts another |
| bytes that are no text, escape sequences, tokens of the template | shown as such |

Limits (`limits:`), of one session:

| limit | default | |
| --- | --- | --- |
"""


def tools_page() -> str:
    """The whole page."""
    lines = [TOP]
    layers = _said_below(Isolation)
    lines += [f"| `{layer}` | {layers[layer.name]} |\n" for layer in Isolation]
    lines.append(TRIED)
    limits = _said_below(Limits)
    for name, default in ((field.name, field.default) for field in dataclasses.fields(Limits)):
        lines.append(f"| `{name}` | `{default}` | {limits[name]} |\n")
    lines.append("\nA call ends in one of these ways:\n\n| ending | |\n| --- | --- |\n")
    endings = _said_below(Ending)
    lines += [f"| `{ending}` | {endings.get(ending.name, 'It ran to its end.')} |\n" for ending in Ending]
    lines.append("\n## Tools by name\n\n")
    tools: dict[str, Any] = TOOLS
    for name, part in sorted(tools.items()):
        lines.append(_class(name, part) if inspect.isclass(part) else _function(name, part))
    lines.append("## How calls are written\n\n`chat: {format: …}`. Yours is one class (`chat/protocol.py`).\n\n")
    for name, form in sorted(FORMATS.items()):
        module = inspect.getdoc(inspect.getmodule(form)) or ""
        lines.append(f"### `{name}`\n\n{inspect.getdoc(form)}\n\n{_first_paragraphs(module)}\n\n")
    return "".join(lines).rstrip() + "\n"


def _function(name: str, function: Callable[..., Any]) -> str:
    return f"### `{name}`\n\n{_body(inspect.getdoc(function) or '')}\n\n"


def _class(name: str, part: type) -> str:
    text = inspect.getdoc(part) or ""
    lines = [f"### `{name}`\n\n", _body(text), "\n\n"]
    said = {p.arg_name: " ".join((p.description or "").split()) for p in parse(text).params}
    options = {k: p for k, p in inspect.signature(part).parameters.items() if p.kind is p.KEYWORD_ONLY}
    if options:
        lines.append("| option | default | |\n| --- | --- | --- |\n")
        for key, p in options.items():
            default = "needed" if p.default is p.empty else f"`{list(p.default) if p.default == () else p.default}`"
            lines.append(f"| `{key}` | {default} | {said.get(key, '').replace('|', chr(92) + '|')} |\n")
        lines.append("\n")
    for method, function in vars(part).items():
        if (
            inspect.isfunction(function)
            and not method.startswith("_")
            and method not in LIFETIME | {"charge", "permits"}
        ):
            shown = ", ".join(
                str(p).partition(":")[0] for p in list(inspect.signature(function).parameters.values())[1:]
            )
            first = (inspect.getdoc(function) or "").partition("\n")[0]
            lines.append(f"- `{method.removesuffix('_passage')}({shown})`: {first}\n")
    return "".join(lines).rstrip() + "\n\n"


def _body(text: str) -> str:
    return re.split(r"\n(?:Args|Raises|Sources?):", text)[0].rstrip()


def _first_paragraphs(text: str) -> str:
    """A module's own words behind its title."""
    return "\n\n".join(text.split("\n\n")[1:])


def _said_below(part: type) -> dict[str, str]:
    """Of each field what stands under it."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
    assert isinstance(node, ast.ClassDef)
    said = {}
    for field, below in pairwise(node.body):
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            target = field.targets[0] if isinstance(field, ast.Assign) else getattr(field, "target", None)
            if isinstance(target, ast.Name):
                said[target.id] = " ".join(str(below.value.value).split())
    return said
