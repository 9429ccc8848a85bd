# ruff: noqa: E501 - tables are lines
"""Page of environments: built-in environments with end reasons and requirements, and the interface of a custom one."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

from docstring_parser import parse

from whetstone.environments import ENVIRONMENTS, TASKS_OF_WORLDS, USERS, is_game, registry
from whetstone.environments.registry import REWARD_OF
from whetstone.plugins import get_component_options
from whetstone.tasks import SOURCES, Expert

TOP = """# Environments

*Generated from the docstrings by `make docs`; edit them there.*

A recipe names an environment, a task source and a reward. An environment and a task source of the same name belong
together:

```yaml
tasks: {source: sokoban, levels: [1, 2]}
environment: {name: sokoban, actions: text}
reward: verdict
```

`whetstone tasks show sokoban` prints tasks. `whetstone environments check sokoban` checks the contract of a built-in or
custom environment (`my_module:MyWorld --tasks my_module:MyTasks`): expert and random scores, the range of rewards,
determinism by seed, in another process and with 64 concurrent episodes, snapshots, end reasons, unusual actions, speed.
Players that do not attempt the task play too. Empty, one-word or nonsense messages must never win, and must never end an
episode with an error. One move before giving up, or a stop word, must not win more often than luck explains: one
correct move among those listed, or one episode in twenty; never with text if a tool call is required.

## Custom environments

An environment has `reset(task, seed)`, `step(message)` and `close()`. A *game*, an environment with one command per turn, has
`begin(task, seed)`, `act(command)`, `verdict()` and `close()`. Methods may be async or plain: an async one runs on the
event loop, a plain one in a thread, so that a blocking method delays only its own episode. `isolation` of a game is
`object` (on the event loop, for games that return immediately), `thread` (a separate thread, the default) or `process` (a
separate process). Worker processes are reused, replaced after 200
episodes, ended when idle, and killed if an episode gave up on them.

| stage | deadline | when it passes |
| --- | --- | --- |
| constructor, `open` of a tool or user, `reset` | `environment.timeout_seconds` | The episode is invalid (`infrastructure`): the policy was not called. It is retried, then counted in `episode/invalid`. |
| a call of a tool | `environment.tool_timeout_seconds` | The call returns `timeout`, which the model reads. |
| the engine, `step` | `environment.turn_timeout_seconds` ([derived](../guide/cost.md#deadlines) by default) and `environment.timeout_seconds` | The episode ends with `timeout` and is scored; it is invalid (`infrastructure`) if the policy has no turn yet or the engine responds to no other request. |
| `verdict` | `environment.timeout_seconds` | The episode is invalid (`infrastructure`). |
| the reward | `rollout.reward_timeout_seconds` | The episode is invalid (`infrastructure`). |
| `close` | 30 seconds, or `environment.timeout_seconds` if that is shorter | The episode counts, with the flag `not_closed` (`flag/not_closed`) and the name of the tool in `error`. Other tools are closed. |

`verdict()`, of an environment, a game, or a class of tools, returns the outcome: `success`, `score` from 0 to
1, and other counts. It is stored with the trajectory, so the reward `verdict` can be recomputed.

`environment.fault_injection` adds random failures, stale results and delays (`error_rate`, `stale_rate`,
`delay_seconds`), seeded by the episode's seed. `whetstone environments serve sokoban` serves an environment over HTTP;
other machines use `{name: remote, url: …}`.

With the strategy `self_play` the policy plays every role of a multiplayer game: one trajectory per role, each compared
with those of the same role. `train: [seller]` trains on one of them. With other strategies, the other roles are
scripted; `rollout.strategy: {name: independent, seat: seller}` chooses the seat of the policy.
"""


def environments_page() -> str:
    """Return the whole page."""
    lines = [
        TOP,
        "## Built-in environments",
        "",
        "| name | | end of an episode | tasks | reward | requirements |",
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
    lines += ["", "## Task sources", "", "| source | |", "| --- | --- |"]
    lines += [f"| `{name}` | {_first(part)} |" for name, part in sorted({**SOURCES, **TASKS_OF_WORLDS}.items())]
    lines += [
        "",
        "The held-out split depends only on the content of a task, not on a seed; tasks with the same text are in the same split.",
        "",
    ]
    lines += [
        "## Users",
        "",
        "Simulated users that talk to the agent (`environment.user`); their messages are marked as such and not trained.",
        "",
    ]
    lines += ["| user | |", "| --- | --- |", *(f"| `{name}` | {_first(part)} |" for name, part in USERS.items()), ""]
    return "\n".join(lines)


def _row(name: str, part: Any) -> str:
    documented = _documented_by(name, part)
    page = inspect.getmodule(documented).__doc__ or ""
    ends = re.search(r"Ends: (.*?)(?:\n\n|$)", f"{inspect.getdoc(documented)}\n\n{page}", re.DOTALL)
    tasks = TASKS_OF_WORLDS.get(name)
    expert = ", with an expert" if tasks is not None and _has_expert(name, tasks) else ""
    cells = (
        f"`{name}`",
        " ".join(page.partition("\n\n")[0].split()),
        " ".join(ends.group(1).split()).rstrip(".") if ends else "see its description",
        f"`{name}`{expert}" if tasks is not None else "custom",
        f"`{REWARD_OF.get(name, 'verdict')}`",
        ", ".join(dict.fromkeys(f"`{need.command}`" for need in getattr(part, "needs", ()))) or "–",
    )
    return f"| {' | '.join(cells)} |"


def _has_expert(name: str, tasks: Any) -> bool:
    return issubclass(tasks, Expert)


def _documented_by(name: str, part: Any) -> Any:
    """Return the object that documents an environment: the tasks, for tools over a simulated world."""
    if isinstance(part, functools.partial) or part.__module__ == registry.__name__:
        return TASKS_OF_WORLDS[name]
    return part


def _first(part: Any) -> str:
    description = parse(inspect.getdoc(part) or "").short_description or ""
    return " ".join(description.split())


def _options(name: str, part: Any) -> str:
    if isinstance(part, functools.partial):
        return ""
    options = get_component_options(part)
    about = {p.arg_name: " ".join((p.description or "").split()) for p in parse(inspect.getdoc(part) or "").params}
    described = [f"`{key}`: {about[key]}" for key in options if key in about]
    kind = " and, same as for every game, `actions`, `instruction`, `isolation`" if is_game(part) else ""
    return f"- **{name}**{kind}: {' '.join(described)}" if described or kind else ""
