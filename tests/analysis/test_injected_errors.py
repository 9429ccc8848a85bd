"""Known errors in successful episodes: changes, their confirmation by replay, and the rows of the command."""

import asyncio
import functools
import json
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import whetstone.analysis
from support.environments import by_expert, environment_of, source_of
from support.rewards import episode, turn
from whetstone.analysis.injected_errors import PROPOSALS
from whetstone.chat import ToolCall, ToolSpec, assistant, user
from whetstone.cli.main import cli
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.recipe import load_recipe
from whetstone.trajectory import Group, Score

EPISODE = replace(
    episode(
        turn("", ("find", {"order": 17}), back=["item 93 of Ann, paid 40"]),
        turn("", ("refund", {"item": 93, "amount": "40"}), back=["paid out"]),
        "Refunded 40.",
    ),
    opening=(user("Refund order 17."),),
)
TOOLS = [
    ToolSpec(name, "", {"properties": {key: {} for key in keys}, "required": keys})
    for name, keys in (("find", ["order"]), ("refund", ["item", "amount"]), ("cancel", ["order"]))
]


def propose(kind, pool=None):
    return list(PROPOSALS[kind](EPISODE, TOOLS, pool or {}, Random(0)))


def test_wrong_argument_changes_one_value():
    errors = propose("wrong_argument", {("find", "order"): [17, 25]})
    assert [(error.turn, error.original) for error in errors] == [
        (0, 'find {"order": 17}'),
        (1, 'refund {"item": 93, "amount": "40"}'),
        (1, 'refund {"item": 93, "amount": "40"}'),
    ]
    assert errors[0].changed == 'find {"order": 25}'
    before = {"item": 93, "amount": "40"}
    for error, key in zip(errors[1:], before, strict=True):
        after = json.loads(error.changed.partition(" ")[2])
        assert [name for name in before if after[name] != before[name]] == [key]
        assert type(after[key]) is type(before[key])
        assert error.actions[0] == EPISODE.turns[0].message


def test_wrong_tool_accepts_the_arguments_if_one_does():
    changed = [(error.turn, error.changed) for error in propose("wrong_tool")]
    assert changed[0] == (0, 'cancel {"order": 17}')
    assert [call.partition(" ")[0] for turn, call in changed if turn == 1] == ["find", "cancel"]


def test_dropped_call_removes_its_turn():
    first, second = propose("dropped_call")
    assert (first.turn, len(first.actions), first.actions[0]) == (0, 2, EPISODE.turns[1].message)
    assert (second.turn, second.original) == (1, 'refund {"item": 93, "amount": "40"}')


def test_misread_result_is_the_first_use_of_a_value_from_an_observation():
    """The order is known from the prompt, and the answer repeats an amount that was used before."""
    errors = [(error.turn, error.original, error.changed) for error in propose("misread_result")]
    assert errors == [(1, "93", "40"), (1, "40", "93")]


@pytest.fixture(scope="module")
def groups():
    source = source_of("support")
    tasks = [source.task(number) for number in range(5)]
    played = [by_expert("support", task, source).trajectory for task in tasks]
    scored = [replace(t, id=f"group-{k}#0", score=Score(1.0, success=True)) for k, t in enumerate(played)]
    return [Group(task, (each,), k) for k, (task, each) in enumerate(zip(tasks, scored, strict=True))]


@pytest.fixture
def run(monkeypatch, groups):
    """Let the command read these groups as those of a run."""
    recorded = SimpleNamespace(admitted=range(len(groups)), has_group=lambda number: True)
    before = SimpleNamespace(offered_tools=tuple(environment_of("support").toolset.specs))
    replay = SimpleNamespace(
        recorded=load_recipe("support"), before=before, record=recorded, load_group=lambda number: groups[number]
    )
    monkeypatch.setattr(whetstone.analysis, "RunReplay", lambda run_dir: replay, raising=False)
    return lambda *options: CliRunner().invoke(cli, ["data", "inject-errors", "run", *map(str, options)])


def test_rows_are_balanced_labeled_and_a_function_of_the_seed(run, tmp_path):
    files = [tmp_path / name for name in ("one", "two", "three")]
    for file, seed in zip(files, (0, 0, 1), strict=True):
        done = run("-o", file, "--seed", seed, "--json")
        assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert (report["solved"], report["not_reproduced"]) == (5, 0)
    assert files[0].read_text() == files[1].read_text() != files[2].read_text()
    rows = [json.loads(line) for line in files[0].read_text().splitlines()]
    counts = {kind: sum(row["error"] == kind for row in rows) for kind in ("none", *PROPOSALS)}
    assert len(set(counts.values())) == 1
    assert counts["none"] >= 2
    for row in rows:
        labels = row["step_labels"]
        assert (labels.index(0) + 1 if 0 in labels else None) == row["turn"]
        assert (row["turn"] is None) == (row["error"] == "none")
        assert row["solved"] or row["error"] != "none"
    assert run("-o", files[0]).exit_code != 0


def test_questions_and_pairs(run, tmp_path):
    assert run("-o", tmp_path / "q", "--as", "questions", "--kind", "wrong_tool", "-n", 2).exit_code == 0
    rows = [json.loads(line) for line in (tmp_path / "q").read_text().splitlines()]
    answers = [json.loads(row["messages"][1]["content"]) for row in rows]
    assert sorted(answer["error"] for answer in answers) == ["none", "none", "wrong_tool", "wrong_tool"]
    for row, answer in zip(rows, answers, strict=True):
        if answer["turn"] is not None:
            assert f"[turn {answer['turn']}] assistant: calls" in row["messages"][0]["content"]
    assert run("-o", tmp_path / "p", "--as", "pairs", "--kind", "dropped_call", "-n", 2).exit_code == 0
    pairs = [json.loads(line) for line in (tmp_path / "p").read_text().splitlines()]
    assert len(pairs) == 2
    assert all(len(pair["rejected"]) < len(pair["chosen"]) for pair in pairs)


def test_run_without_solved_episodes_is_refused(run, groups, tmp_path, monkeypatch):
    unsolved = [
        replace(group, trajectories=tuple(replace(t, score=Score(0.0, success=False)) for t in group.trajectories))
        for group in groups
    ]
    monkeypatch.setattr(whetstone.analysis.RunReplay("run"), "load_group", lambda number: unsolved[number])
    failure = run("-o", tmp_path / "x").exception
    assert "run: no episode is solved" in str(failure)


def test_episode_whose_replay_differs_is_not_used(run, groups, tmp_path, monkeypatch):
    other = replace(groups[0].trajectories[0], opening=())
    turns = (replace(other.turns[0], observation=(user("Something else."),)), *other.turns[1:])
    changed = replace(groups[0], trajectories=(replace(other, turns=turns),))
    load = lambda number: changed if number == 0 else groups[number]  # noqa: E731
    monkeypatch.setattr(whetstone.analysis.RunReplay("run"), "load_group", load)
    done = run("-o", tmp_path / "x", "--json")
    assert json.loads(done.output)["not_reproduced"] == 1
    assert "group-0#0" not in (tmp_path / "x").read_text()


def test_solved_episode_with_an_error_of_the_policy_is_not_used(run, groups, tmp_path, monkeypatch):
    task = groups[0].task
    wrong = assistant("", ToolCall("find_account", '{"number": "1"}'))
    actions = iter([wrong, *(turn.message for turn in groups[0].trajectories[0].turns)])
    make = functools.partial(environment_of, "support")
    played = asyncio.run(play_with_policy(make, task, lambda *_: next(actions), seed=7)).trajectory
    assert played.final["success"]
    solved = replace(played, id="group-0#0", score=Score(1.0, success=True))
    changed = replace(groups[0], trajectories=(solved,))
    load = lambda number: changed if number == 0 else groups[number]  # noqa: E731
    monkeypatch.setattr(whetstone.analysis.RunReplay("run"), "load_group", load)
    report = json.loads(run("-o", tmp_path / "x", "--json").output)
    assert (report["not_reproduced"], report["with_failed_calls"]) == (0, 1)
    assert "group-0#0" not in (tmp_path / "x").read_text()
