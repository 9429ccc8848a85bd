"""Experience at each step against once per episode, and state summaries on the edges of a tool graph."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from paper_properties import exact
from paper_properties.episodes import TASK, make_episode, make_turn
from whetstone.analysis.exact import Figure
from whetstone.chat import Message, tool_result, user
from whetstone.rollout.context_transforms.experience import Experience
from whetstone.rollout.protocol import EpisodeKey, EpisodeState, StepOutcome
from whetstone.trajectory import Group, Trajectory, Turn

_RIGHT = {"a red door": "push", "a blue door": "pull", "a rope": "climb", "a chest": "open"}
_ACTIONS = ("push", "pull", "climb", "open")


def _act(action: str, result: str) -> Turn:
    turn = make_turn("", [(action, "{}")])
    return replace(turn, observation=(tool_result(result),))


def _show(scene: str, room: int) -> str:
    return f"Room {room}: you see {scene}."


def _walk(scenes: Sequence[str], *, rooms: Sequence[int], actions: Sequence[str]) -> Trajectory:
    """Build an episode through rooms; it is solved if every action is right."""
    texts = [_show(scene, room) for scene, room in zip(scenes, rooms, strict=True)]
    turns = [_act(action, text) for action, text in zip(actions, (*texts[1:], "Out."), strict=True)]
    right = all(_RIGHT[scene] == action for scene, action in zip(scenes, actions, strict=True))
    return replace(make_episode(turns, reward=float(right)), opening=(user(texts[0]),))


def _learn(view: Experience) -> None:
    """Store one success per order of scenes in rooms 1 to 4, as from earlier updates."""
    for step, scenes in enumerate(itertools.permutations(_RIGHT), 1):
        episode = _walk(scenes, rooms=(1, 2, 3, 4), actions=[_RIGHT[scene] for scene in scenes])
        view.observe(StepOutcome(step, (Group(TASK, (episode,)),), {}, Random(0)))


def _success(view: Experience) -> float:
    """Return the success over all orders of scenes in new rooms; without a hint all actions are equally likely."""
    total = 0.0
    orders = list(itertools.permutations(_RIGHT))
    for scenes in orders:
        probability, turns = 1.0, list[Turn]()
        for place, scene in enumerate(scenes):
            state = EpisodeState(EpisodeKey(TASK, 0), turns=tuple(turns), context_length=4096)
            messages: tuple[Message, ...] = (user(_show(scene, 57 + place)),)
            texts = view.observation(messages, state) if place else view.opening(messages, state)
            if not place:
                texts = view.observation(texts, state)
            hint = re.search(r"worked before: (\w+)", texts[-1].text)
            action = hint[1] if hint else ""
            probability *= float(action == _RIGHT[scene]) if hint else 1 / len(_ACTIONS)
            turns.append(_act(_RIGHT[scene], "next"))
        total += probability / len(orders)
    return total


@exact("experience", "xskill", of=Experience, note="the policy is scripted and follows the entry; no weights change")
def experience_at_each_step_beats_one_lookup_per_episode() -> list[Figure]:
    """Four scenes in any order, in rooms with new numbers: with entries of the cluster at each step, a
    policy without updates solves all 24 orders; with one lookup per episode it guesses three of four actions; without
    entries all four, also after 24 failed episodes, whose actions are never shown as those that worked."""
    views = {
        "step": Experience(golden=1, warning=0, warm_up=1, min_entries=1, clusters=True),
        "episode": Experience(golden=1, warning=0, warm_up=1, min_entries=1, clusters=True, lookup="episode"),
    }
    empty = _success(views["step"])
    for view in views.values():
        _learn(view)
    failures = Experience(golden=1, warning=0, warm_up=1, min_entries=1, clusters=True)
    for step, scenes in enumerate(itertools.permutations(_RIGHT), 1):
        wrong = _walk(scenes, rooms=(1, 2, 3, 4), actions=["open"] * 4)
        failures.observe(StepOutcome(step, (Group(TASK, (wrong,)),), {}, Random(0)))
    return [
        Figure("success without entries", "=", 1 / 4**4, empty),
        Figure("success with a lookup at each step", "=", 1.0, _success(views["step"])),
        Figure("success with one lookup per episode", "=", 1 / 4**3, _success(views["episode"])),
        Figure("success after failed episodes only", "=", 1 / 4**4, _success(failures)),
    ]


@exact("sit-graph", of=Experience.predict_next_tool, note="states are clusters of results, not written summaries")
def states_on_edges_decide_the_next_tool() -> list[Figure]:
    """After `check`, the next tool depends on its result: `refill` after low, `report` after full. Counts on edges
    predict half of the next tools, counts with the state of the edge all of them, for readings that never occurred."""
    view = Experience(warm_up=1, min_entries=1, next_tool=True)
    follows = {"low": "refill", "full": "report"}
    for step, (level, tool) in enumerate([*follows.items()] * 3, 1):
        turns = [_act("check", f"tank {step} is {level}"), _act(tool, "done")]
        view.observe(StepOutcome(step, (Group(TASK, (make_episode(turns, reward=1.0),)),), {}, Random(0)))
    tests = [(f"tank {number} is {level}", tool) for number in range(90, 100) for level, tool in follows.items()]
    counts = view.edges["check"]
    common = max(counts, key=lambda name: counts[name])
    with_state = [view.predict_next_tool("check", text) == tool for text, tool in tests]
    state = EpisodeState(EpisodeKey(TASK, 0), turns=(_act("check", "?"),), context_length=4096)
    line = view.observation((tool_result("tank 95 is low"),), state)[-1].text
    restored = Experience(next_tool=True)
    restored.load_state(json.loads(json.dumps(view.state())))
    return [
        Figure("next tools predicted by counts only, of 20", "=", 10, sum(common == tool for _, tool in tests)),
        Figure("with the state of the edge", "=", 20, sum(with_state)),
        Figure("shown to the policy", "=", 1, "usually next: refill" in line),
        Figure("after a checkpoint", "=", 1, restored.predict_next_tool("check", "tank 3 is full") == "report"),
    ]
