"""Evaluation against opponents: each seat of a game, checkpoints as opponents, failures, and unknown names."""

import json
import re

import pytest
from click.testing import CliRunner

from paper_properties.opponents import game_recipe
from support.small import SMALL
from whetstone.assembly import assemble
from whetstone.cli.main import cli
from whetstone.environments.built_in.bargaining import Dealing
from whetstone.errors import RecipeError, RunDirectoryError
from whetstone.policies import save_policy
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.rollout import FrozenActor, ModelActor
from whetstone.training import evaluate_opponents, load_agent, train
from whetstone.training.opponent_evaluation import build_opponent, find_game_seats

FEW = [*SMALL, "supervised.steps=1", "reinforcement.steps=1", "evaluation.episodes=2"]


def fail_always(conversation, tools, seed):
    raise RuntimeError("the opponent is ill")


def never_move(conversation, tools, seed):
    return "I pass."


def evaluate_subtraction(opponent, **changes):
    agent = load_agent({**game_recipe("play_subtraction"), **changes}, policy="paper_properties.opponents:take_most")
    results, _ = evaluate_opponents(agent, [opponent], progress=Progress(quiet=True))
    return results[opponent]


def test_game_of_a_failing_opponent_is_no_win_and_has_no_score():
    result = evaluate_subtraction(f"{__name__}:fail_always", evaluation={"episodes": 2})
    # the opponent moves first in 2 of 4 games, and fails in its first turn in all
    assert (result.episodes, result.invalid, result.sound) == (0, 4, False)
    assert any("the opponent is ill" in cause for cause in result.causes)


def test_opponent_that_makes_no_legal_move_loses_by_the_rules_of_the_game():
    result = evaluate_subtraction(f"{__name__}:never_move", evaluation={"episodes": 2})
    assert (result.success, result.invalid, result.episodes) == (1, 0, 4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opponents") / "run"
    train(load_recipe("bargaining", FEW), folder, progress=Progress(quiet=True))
    return folder


def evaluate_run(*words):
    return CliRunner().invoke(cli, ["evaluate", *map(str, words)], catch_exceptions=False)


@pytest.mark.slow
def test_checkpoint_of_the_run_and_the_run_itself_are_the_same_opponent(run, tmp_path):
    opponents = ["--opponent", "script", "--opponent", "step-1", "--opponent", run]
    words = [run, *opponents, "--json", "--output-dir", tmp_path / "kept"]
    printed = json.loads(evaluate_run(*words).stdout)
    results, protocol = printed["opponents"], printed["protocol"]
    assert list(results) == ["script", "step-1", str(run)]
    assert results["step-1"] == results[str(run)]
    assert [each["agent"] for each in protocol["opponents"]] == ["script", protocol["agent"], protocol["agent"]]
    assert protocol["seats"] == list(Dealing.roles)
    for result in results.values():
        assert {seat: each["episodes"] for seat, each in result["seats"].items()} == {"buyer": 2, "seller": 2}
        assert (result["episodes"], result["tasks"]) == (4, 2)
    lines = {path: path.read_bytes() for path in (tmp_path / "kept").rglob("groups.jsonl")}
    assert len(lines) == 3 * 2
    assert json.loads(evaluate_run(*words).stdout)["opponents"] == results  # from the record
    assert {path: path.read_bytes() for path in (tmp_path / "kept").rglob("groups.jsonl")} == lines
    with pytest.raises(RunDirectoryError, match=r"holds another evaluation \(opponents was"):
        evaluate_run(run, "--opponent", "script", "--output-dir", tmp_path / "kept")


@pytest.mark.slow
def test_other_game_is_an_override(run):
    game = ["environment.name=paper_properties.opponents:play_subtraction", "environment.max_turns=4"]
    tasks = ["tasks.source=paper_properties.opponents:CoinTasks", "environment.actions=null"]
    printed = evaluate_run(run, *game, *tasks, "--opponent", "script", "--json").stdout
    (result,) = json.loads(printed)["opponents"].values()
    # text that is not a move loses, also against a script
    assert (list(result["seats"]), result["success"], result["episodes"]) == (["first", "second"], 0, 4)
    table = evaluate_run(run, *game, *tasks, "--opponent", "script", "--episodes", 99)
    lines = [line.split() for line in table.stdout.splitlines()]
    assert [line[:2] for line in lines[:4]] == [
        ["against", "script"],
        ["all", "seats"],
        ["as", "first"],
        ["as", "second"],
    ]
    # Wilson with 16 tasks: 1.96² / (16 + 1.96²) = 19 %
    assert " ".join(lines[1]) == "all seats success 0.0% (0% to 19%) reward 0.000 (0.000 to 0.194) 32 games"
    assert "99 held-out tasks were requested, the source has 16" in table.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--opponent", "step-7"], r"--opponent step-7: .*: no checkpoint step-7; existing checkpoints: step-"),
        (["--opponent", "expert"], r"--opponent expert: plays one seat only; write script, person"),
        (["--opponent", "runs/none"], r"--opponent runs/none: no player, run or model folder has this name; write"),
        (["--opponent", "no_such:play"], r'player "no_such:play": '),
        (["--opponent", "script", "--inspect", "log.json"], r"--inspect: writes one evaluation; omit it"),
        (
            ["--opponent", "script", "environment={name: tools}", "tasks={source: arithmetic}"],
            r'--opponent: environment "tools" has no second seat for an opponent; choose a game with seats',
        ),
    ],
)
def test_opponents_and_games_that_do_not_exist_get_one_line(run, words, message):
    with pytest.raises(RecipeError) as refused:
        evaluate_run(run, *words)
    assert "\n" not in str(refused.value)
    assert re.match(message, str(refused.value)), refused.value


def test_model_with_other_tokens_plays_in_its_own_chat_template(tmp_path):
    assembly = assemble(load_recipe("bargaining", SMALL))
    save_policy(assembly.policy, tmp_path / "same")
    other = assemble(load_recipe("bargaining", [*SMALL, "policy.tiny.vocab_size=300"]))
    save_policy(other.policy, tmp_path / "other")
    same = build_opponent(assembly, str(tmp_path / "same"), None)
    assert isinstance(same.actor, FrozenActor)
    assert isinstance(build_opponent(assembly, str(tmp_path / "other"), None).actor, ModelActor)
    assert find_game_seats(assembly) == Dealing.roles
