"""Page actions and calls for the same change: shortest paths and the rule reward for each action."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterator
from statistics import fmean

from paper_properties import exact
from whetstone.analysis.exact import Figure
from whetstone.environments.built_in.web_pages import STYLES, Interface, WebPages, WebPagesTasks
from whetstone.seeding import derive_random
from whetstone.trajectory import Task

_TASKS = 4
"""Tasks of each level."""


def _tasks(level: int, interface: Interface) -> Iterator[Task]:
    source = WebPagesTasks(levels=[level], interface=interface)
    return map(source.task, range(_TASKS))


def _started(task: Task) -> WebPages:
    game = WebPages()
    game.begin(task, 0)
    return game


def _state(game: WebPages) -> bytes:
    """Return what later pages and answers depend on."""
    changed = sorted((name, sorted(fields.items())) for name, fields in game.found.items())
    return pickle.dumps((game.page, sorted(game.form.items()), changed, game.saved is not None))


def shortest_success(task: Task) -> int:
    """Return the smallest number of admissible actions that succeed, by breadth-first search over all states.

    Calls that find another record than that of the task cannot be part of a shortest path and are left out.
    """
    states, seen, depth = [_started(task)], set[bytes](), 0
    while True:
        depth += 1
        following = []
        for state in states:
            saved = state.snapshot()
            for command in state.admissible():
                if command.startswith("call find ") and command != f"call find {task.private['record']}":
                    continue
                game = WebPages()
                game.restore(saved)
                result = game.act(command)
                if result.reward == 1.0:
                    return depth
                if not result.terminated and (key := _state(game)) not in seen:
                    seen.add(key)
                    following.append(game)
        states = following


@functools.cache
def _lengths() -> dict[tuple[Interface, int], list[int]]:
    """Return the shortest number of actions of the tasks by interface and level."""
    interfaces: tuple[Interface, ...] = ("pages", "calls", "both")
    return {
        (interface, level): [shortest_success(task) for task in _tasks(level, interface)]
        for interface in interfaces
        for level in (1, 2, 3)
    }


@exact("toolcua", of=[WebPages, WebPagesTasks], note="text pages in place of screenshots; no run with the reward")
def path_efficiency_is_one_only_on_the_shorter_kind() -> list[Figure]:
    """Breadth-first search over all states finds the shortest number of actions on pages, with calls and with both; the
    expert needs as many, and has a path efficiency of 1. Settings are nearer by page, customers by calls, so an agent
    with only one kind loses path efficiency."""
    lengths = _lengths()
    experts, efficiencies = 0, []
    for (interface, level), shortest in lengths.items():
        for task, least in zip(_tasks(level, interface), shortest, strict=True):
            game = _started(task)
            while game.saved is None:
                game.act(game.solve())
            experts += game.steps != least
            efficiencies.append(game.verdict()["efficiency"])
    interfaces: tuple[Interface, ...] = ("both", "calls", "pages")
    both, calls, pages = ([n for level in (1, 2, 3) for n in lengths[each, level]] for each in interfaces)
    return [
        Figure("episodes of the expert that are longer than the search", "=", 0, experts),
        Figure("lowest path efficiency of the expert", "=", 1.0, min(efficiencies)),
        Figure("settings with fewer page actions than calls, of 4", "=", _TASKS,
               sum(p < c for p, c in zip(lengths["pages", 1], lengths["calls", 1], strict=True))),
        Figure("customers with fewer calls than page actions, of 4", "=", _TASKS,
               sum(c < p for p, c in zip(lengths["pages", 3], lengths["calls", 3], strict=True))),
        Figure("path efficiency with calls only", "<", 1.0,
               fmean(least / n for least, n in zip(both, calls, strict=True))),
        Figure("path efficiency with pages only", "<", 1.0,
               fmean(least / n for least, n in zip(both, pages, strict=True))),
    ]  # fmt: skip


@exact("gui-r1", of=[WebPages, WebPagesTasks], note="text pages in place of screenshots; no run with the reward")
def the_rule_reward_is_one_only_on_the_path_of_the_expert() -> list[Figure]:
    """The rule reward of an action is the fraction of kind, target and text that equal the expert's, and that of an
    episode the mean over its actions; long episodes gain nothing. It is 1 for the expert in all three styles, and
    none of 600 random players that fails reaches it. One wrong part of three costs a third."""
    failed = []
    draw = derive_random("random players on pages")
    by_style: dict[str, list[float]] = {style: [] for style in STYLES}
    for style in STYLES:
        source = WebPagesTasks(styles=[style])
        for task in map(source.task, range(20)):
            expert = _started(task)
            while expert.saved is None:
                expert.act(expert.solve())
            by_style[style].append(expert.verdict()["action_match"])
            for _ in range(10):
                game = _started(task)
                while game.saved is None and game.steps < game.max_steps:
                    game.act(draw.choice(game.admissible()))
                verdict = game.verdict()
                if not verdict["success"]:
                    failed.append(verdict["action_match"])
    lowest_expert, highest_random = min(min(each) for each in by_style.values()), max(failed)
    task = next(iter(_tasks(1, "pages")))
    game = _started(task)
    kind, target, text = game.solve().split()
    other = next(each for each in ("off", "on") if each != text)
    game.act(f"{kind} {target} {other}")
    return [
        Figure("lowest reward of the expert in three styles", "=", 1.0, lowest_expert),
        Figure("highest reward of a random player that fails", "<", 1.0, highest_random),
        Figure("reward of an action with one wrong part of three", "=", 2 / 3, game.match),
    ]
