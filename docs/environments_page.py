# ruff: noqa: E501 - tables are lines
"""The page of environments: what there is, how it ends, what it needs, and how to write one."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

from docstring_parser import parse

from whetstone.environments import ENVIRONMENTS, TASKS_OF_WORLDS, USERS, is_game
from whetstone.environments.catalogue import REWARD_OF
from whetstone.plugins import options_of
from whetstone.tasks import SOURCES, Expert

TOP = """# Environments

*Written from the docstrings by `make docs`; change them there.*

A recipe names an environment, where its tasks come from, and what judges; a name that is in both lists goes together:

```yaml
tasks: {source: sokoban, levels: [1, 2]}
environment: {name: sokoban, actions: text}
reward: verdict
```

`whetstone tasks show sokoban` looks at tasks, `whetstone environments check sokoban` tries whether the environment
keeps its promises, ours or yours (`my_module:MyWorld --tasks my_module:MyTasks`): expert and random scores, the range
of rewards, the same episode again by seed, in another process and beside 64 others, snapshots, endings, strange
actions, speed. Players that do not do the task play too: who says nothing, one word or nonsense may never win and
never end an episode as a fault; who makes one move and gives up, or says what ends things, wins no more often than
luck explains (one right move among those listed, or one episode in twenty; never by words where tools are to be
called).

## Writing one

An environment has `reset(task, seed)`, `step(message)` and `close()`. A *game*, a world of one command a turn, has
`begin(task, seed)`, `act(command)`, `verdict()` and `close()`. Methods may be async or plain: an async one runs on the
event loop, a plain one in a thread, so that one that blocks delays only its own episode. `isolation` of a game is
`object` (on the event loop, for games that answer at once), `thread` (a separate thread, the default) or `process` (a
separate process). Worker processes are reused, replaced after 200
episodes, ended when idle, and killed if an episode gave up on them.

| stage | deadline | when it passes |
| --- | --- | --- |
| constructor, `open` of a tool or user, `reset` | `environment.timeout_seconds` | The episode is invalid (`infrastructure`): the policy was not called. It is played again, then counted in `episode/invalid`. |
| a call of a tool | `environment.tool_timeout_seconds` | The call returns `timeout`, which the model reads. |
| the engine, `step` | `environment.turn_timeout_seconds` ([derived](cost.md#deadlines) by default) and `environment.timeout_seconds` | The episode ends with `timeout` and is scored; it is invalid (`infrastructure`) if the policy has no turn yet or the engine answers no other request. |
| `verdict` | `environment.timeout_seconds` | The episode is invalid (`infrastructure`). |
| the reward | `rollout.reward_timeout_seconds` | The episode is invalid (`infrastructure`). |
| `close` | 30 seconds, or `environment.timeout_seconds` if that is shorter | The episode counts, with the flag `not_closed` (`flag/not_closed`) and the name of the tool in `error`. Other tools are closed. |

`verdict()`, of an environment, a game, or a class of tools, returns the outcome: `success`, `score` from 0 to
1, and whatever it counted. It is kept with the trajectory, so the reward `verdict` can be computed again.

`environment.fault_injection` adds random failures, stale results and delays (`error_rate`, `stale_rate`,
`delay_seconds`), seeded by the episode's seed. `whetstone environments serve sokoban` serves one over HTTP; elsewhere
it is `{name: remote, url: …}`.

With the strategy `self_play` the policy takes every seat of a game with several: a trajectory for each role, each
compared with its own; `train: [seller]` learns from one of them. Alone at a table, the other seats are scripted.
"""


def environments_page() -> str:
    """The whole page."""
    lines = [
        TOP,
        "## Those there are",
        "",
        "| name | | ends | tasks | judged by | needs |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_row(name, part) for name, part in ENVIRONMENTS.items()]
    lines += [
        "",
        "Options, in addition to those of every environment (`max_turns`, `timeout_seconds`, `turn_timeout_seconds`, "
        "`fault_injection`):",
        "",
    ]
    lines += [line for name, part in ENVIRONMENTS.items() if (line := _options(name, part))]
    lines += ["", "## Where tasks come from", "", "| source | |", "| --- | --- |"]
    lines += [f"| `{name}` | {_first(part)} |" for name, part in sorted({**SOURCES, **TASKS_OF_WORLDS}.items())]
    lines += [
        "",
        "Which tasks are held out depends on what they are, never on a seed; the same words are on one side.",
        "",
    ]
    lines += [
        "## Users",
        "",
        "Who the agent speaks to (`environment.user`); what he says is marked as his and never trained.",
        "",
    ]
    lines += ["| user | |", "| --- | --- |", *(f"| `{name}` | {_first(part)} |" for name, part in USERS.items()), ""]
    return "\n".join(lines)


def _row(name: str, part: Any) -> str:
    said = _said(name, part)
    page = inspect.getmodule(said).__doc__ or ""
    ends = re.search(r"Ends: (.*?)(?:\n\n|$)", f"{inspect.getdoc(said)}\n\n{page}", re.DOTALL)
    tasks = TASKS_OF_WORLDS.get(name)
    expert = ", with an expert" if tasks is not None and _has_expert(name, tasks) else ""
    cells = (
        f"`{name}`",
        " ".join(page.partition("\n\n")[0].split()),
        " ".join(ends.group(1).split()).rstrip(".") if ends else "as it says",
        f"`{name}`{expert}" if tasks is not None else "yours",
        f"`{REWARD_OF.get(name, 'verdict')}`",
        ", ".join(f"`{need.command}`" for need in getattr(part, "needs", ())) or "–",
    )
    return f"| {' | '.join(cells)} |"


def _has_expert(name: str, tasks: Any) -> bool:
    return issubclass(tasks, Expert)


def _said(name: str, part: Any) -> Any:
    """What speaks for an environment: of one that is tools over a world, its tasks' file."""
    if isinstance(part, functools.partial) or part.__module__.endswith(".catalogue"):
        return TASKS_OF_WORLDS[name]
    return part


def _first(part: Any) -> str:
    said = parse(inspect.getdoc(part) or "").short_description or ""
    return " ".join(said.split())


def _options(name: str, part: Any) -> str:
    if isinstance(part, functools.partial):
        return ""
    options = options_of(part)
    about = {p.arg_name: " ".join((p.description or "").split()) for p in parse(inspect.getdoc(part) or "").params}
    shown = [f"`{key}`: {about[key]}" for key in options if key in about]
    kind = " and, as of every game, `actions`, `instruction`, `isolation`" if is_game(part) else ""
    return f"- **{name}**{kind}: {' '.join(shown)}" if shown or kind else ""
