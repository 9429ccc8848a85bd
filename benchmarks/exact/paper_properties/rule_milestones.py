"""Milestones by rule of the customer service and the web shop."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from paper_properties import exact
from paper_properties.episodes import make_episode, make_turn
from whetstone.analysis.exact import Figure
from whetstone.chat import tool_result
from whetstone.environments.built_in.support import SupportDesk, SupportTasks, SupportUser
from whetstone.environments.built_in.web_shop import WebShop, WebShopTasks, build_catalog, write_milestones
from whetstone.errors import ToolError
from whetstone.rewards.environment_state.environment_outcome import verdict
from whetstone.rewards.gated.milestones import Milestones
from whetstone.seeding import derive_random
from whetstone.tools.protocol import Episode
from whetstone.trajectory import CallRecord, Score, Task, Trajectory, Turn

_TEXTS = ("Which is your number?", "What does your phone show?", "Turn the vpn off.", "Please try again.")
_TOOLS = ("find_account", "resume_line", "refill_data")


def _observed(text: str, observation: str) -> Turn:
    return replace(make_turn(text), observation=(tool_result(observation),))


def _play_support(task: Task, actions: Sequence[str]) -> tuple[Trajectory, list[float]]:
    """Play actions in the customer service; return the episode, and the fraction of milestones by the state after each.

    The fraction is counted from the state of the line: number asked, phone asked, account looked up, line resumed,
    user content.
    """
    episode, desk, user = Episode(task, 0), SupportDesk(), SupportUser()
    desk.open(episode)
    user.open(episode)
    line, turns, fractions = episode.shared["support"], [], [0.0]
    for k, action in enumerate(actions):
        if action in _TOOLS:
            try:
                result, outcome = getattr(desk, action)(line.number), "ok"
            except ToolError as error:
                result, outcome = str(error), "tool_error"
            call_turn = make_turn("", [(action, f'{{"number": "{line.number}"}}')])
            turns.append(
                replace(call_turn, observation=(tool_result(result),), calls=(CallRecord(action, outcome, 0.0),))
            )
        else:
            turns.append(_observed(action, user.answer(action).text))
        events = (*(text in actions[: k + 1] for text in _TEXTS[:2]), line.looked_up, "suspended" not in line.faults)
        fractions.append(sum((*events, line.content)) / 5)
        if line.content:
            break
    return replace(make_episode(turns), final=desk.verdict()), fractions


@functools.cache
def _support_scores() -> list[tuple[Score, Score, list[float]]]:
    """Return the scores of all sequences of four actions: as they are, with the potential reset, and the fractions."""
    source = SupportTasks(milestones=True)
    task = next(t for t in map(source.task, range(999)) if sorted(t.private["faults"]) == ["suspended", "vpn"])
    plain, reset = (Milestones(outcome=verdict, in_order=False, reset_at_end=each) for each in (False, True))

    async def score_all() -> list[tuple[Score, Score, list[float]]]:
        scores = []
        for actions in itertools.product((*_TEXTS, *_TOOLS), repeat=4):
            episode, fractions = _play_support(task, actions)
            scores.append((await plain(episode, task), await reset(episode, task), fractions))
        return scores

    return asyncio.run(score_all())


@exact("mira", "words-as-beacons", of=[Milestones, SupportTasks], note="rules write the subgoals, not a language model")
def each_milestone_of_support_is_paid_once() -> list[Figure]:
    """Over all 2,401 sequences of four actions for a suspended line and a vpn, the rewards of turns are the differences
    of the fraction of milestones that the state has ever fulfilled, and telescope to it; repeated actions earn nothing.
    Solved episodes get more than all others. With the potential reset at the end, no player profits. Held-out tasks
    have no milestones."""
    wrong = telescoped = returned = 0.0
    for plain, reset, fractions in _support_scores():
        turns = plain.turns or ()
        wrong += any(abs(t - b + a) > 1e-9 for t, (a, b) in zip(turns, itertools.pairwise(fractions), strict=True))
        telescoped = max(telescoped, abs(sum(turns) - fractions[-1]))
        returned = max(returned, abs(sum(reset.turns or ())))
    totals: dict[bool, list[float]] = {True: [], False: []}
    for plain, _, _ in _support_scores():
        totals[bool(plain.success)].append(plain.value + sum(plain.turns or ()))
    gains = [reset.value + sum(reset.turns or ()) - float(bool(reset.success)) for _, reset, _ in _support_scores()]
    source = SupportTasks(milestones=True)
    asked_often = _play_support(source.task(0), _TEXTS[:1] * 4)[0]
    repeated = asyncio.run(Milestones(outcome=verdict, in_order=False)(asked_often, source.task(0)))
    return [
        Figure("sequences with other rewards", "=", 0, wrong),
        Figure("largest difference of a sum from the final fraction", "=", 0.0, telescoped),
        Figure("milestones paid for asking the number four times", "=", 1.0,
               sum(repeated.turns or ()) * len(source.task(0).private["milestones"])),
        Figure("lowest total of a solved episode less the highest of another", ">", 0.0,
               min(totals[True]) - max(totals[False])),
        Figure("largest sum with the potential reset", "=", 0.0, returned),
        Figure("mean gain of random players over the outcome, reset", "=", 0.0, fmean(gains)),
        Figure("held-out tasks of 40 with milestones", "=", 0,
               sum("milestones" in task.private for task in source.held_out(40))),
        Figure("held-out tasks of 40 that differ without the option", "=", 0,
               sum(a != b for a, b in zip(source.held_out(40), SupportTasks().held_out(40), strict=True))),
    ]  # fmt: skip


def _play_shop(task: Task, choose: Any) -> Trajectory:
    """Play a visit to the shop with the commands that `choose(game)` returns."""
    game, turns = WebShop(), []
    game.begin(task, 0)
    while True:
        command = choose(game)
        result = game.act(command)
        turns.append(_observed(command, result.text))
        if result.terminated or result.truncated:
            return replace(make_episode(turns), final=game.verdict())


@exact("mira", "words-as-beacons", of=[Milestones, WebShopTasks], note="rules write the subgoals, not a language model")
def milestones_of_the_shop_hold_on_exactly_the_fitting_pages() -> list[Figure]:
    """On every page of every product of a shop of 50, with every choice of options, exactly the milestones hold whose
    product and options fit the request. The expert reaches all of them; random clicks reach a part and earn nothing
    with the potential reset."""
    source = WebShopTasks(levels=[1], milestones=True)
    tasks = [source.task(index) for index in range(12)]
    wrong = 0
    for task in tasks[:4]:
        wish, (_, page, *chosen) = task.private["wish"], task.private["milestones"]
        for product in build_catalog(50):
            fits = (
                product["noun"] == wish["noun"]
                and set(wish["attributes"]) <= set(product["attributes"])
                and product["price"] < wish["limit"]
                and wish["options"]["color"] in product["options"]["color"]
            )
            for color in (None, *product["options"]["color"]):
                game = WebShop()
                game.begin(task, 0)
                game.page, game.product, game.chosen = "results", "", {}
                game.results = [product["id"]]
                text = game.act(f"click[{product['id']}]").text
                text = game.act(f"click[{color}]").text if color else text
                reached = [_holds(milestone, text) for milestone in (page, *chosen)]
                wrong += reached != [fits, fits and color == wish["options"]["color"]]
    draw = derive_random("random clicks")
    reset, plain = (Milestones(outcome=verdict, reset_at_end=each) for each in (True, False))

    async def compare() -> tuple[list[Score], list[Score], list[Score]]:
        expert = [await plain(_play_shop(task, lambda game: game.solve()), task) for task in tasks]
        random = [_play_shop(task, lambda game: draw.choice(game.admissible())) for task in tasks for _ in range(20)]
        played = list(zip(random, (task for task in tasks for _ in range(20)), strict=True))
        return expert, [await plain(*each) for each in played], [await reset(*each) for each in played]

    expert, random, random_reset = asyncio.run(compare())
    return [
        Figure("pages of 4 requests with other milestones", "=", 0, wrong),
        Figure("fraction of milestones of the expert", "=", 1.0, min(sum(score.turns or ()) for score in expert)),
        Figure("mean fraction of random clicks", "<", 0.5, fmean(sum(score.turns or ()) for score in random)),
        Figure("their largest gain with the potential reset", "=", 0.0,
               max(abs(sum(score.turns or ())) for score in random_reset)),
        Figure("requests at level 3 without a fitting product", "=", 0,
               sum(not _fitting(WebShopTasks(levels=[3]).task(index)) for index in range(40))),
    ]  # fmt: skip


def _holds(milestone: dict[str, str], text: str) -> bool:
    episode = make_episode([_observed("", text)])
    score = asyncio.run(Milestones(outcome=verdict)(replace(episode, final={"success": False}), _task(milestone)))
    return score.parts["milestones"] == 1.0


def _task(milestone: dict[str, str]) -> Task:
    return Task("t", "", {"milestones": [milestone]})


def _fitting(task: Task) -> bool:
    return "^(?:)" not in write_milestones(task.private["wish"], task.private["products"])[0]["says"]
