"""`whetstone why` with a file of episodes, and arguments that `whetstone serve` refuses."""

import pytest
from click.testing import CliRunner

from whetstone.chat import assistant, user
from whetstone.cli.main import cli
from whetstone.cli.serve import RecordFile
from whetstone.serving.trainable_tokens import recorded_episodes
from whetstone.trajectory import Author, EndReason, Score, Tokens, Trajectory, Turn
from whetstone.trajectory_json import encode_trajectory


def whetstone(*arguments):
    return CliRunner().invoke(cli, [*map(str, arguments)])


def episode(name, text, reward):
    action = Tokens.concatenate(
        [
            Tokens.from_ids((5,), Author.INSERTED),
            Tokens.from_samples((6, 7), logprobs=(-0.5, -0.25), versions=(3, 3), entropies=(0.0, 0.0)),
        ]
    )
    turn = Turn(Tokens.from_ids((1, 2), Author.ENVIRONMENT), action, assistant(text), opens_segment=True)
    score = None if reward is None else Score(reward)
    return Trajectory(f"t/{name}", "t", (user("hi"),), (turn,), EndReason.TERMINATED, score=score)


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "said.jsonl"
    episodes = [episode("e1", "[bold]five\x1b[31m", 1.0), episode("e2", "six", None)]
    path.write_bytes(b"".join(encode_trajectory(each) + b"\n" for each in episodes))
    return path


def test_why_lists_the_episodes_of_a_file_and_the_tokens_of_one(recorded):
    printed = whetstone("why", recorded)
    assert printed.exit_code == 0, printed.output
    assert "t/e1" in printed.output
    assert "none" in printed.output
    one = whetstone("why", recorded, "e1")
    assert "2 of 3 tokens can be trained; 1 not trained: inserted, not sampled" in one.output
    assert "\x1b[31m" not in one.output
    assert '"trained": 2' in whetstone("why", recorded, "e1", "--json").output.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("e3",), "has no episode e3"),
        (("--turn", "0"), "--turn: has no effect on a file"),
        (("--step", "1"), "--step: has no effect on a file"),
    ],
)
def test_options_that_require_a_run_are_refused_for_files(recorded, arguments, message):
    result = whetstone("why", recorded, *arguments)
    assert message in str(result.exception)


def test_file_without_episodes_is_refused(tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text('{"x": 1}\n')
    assert "not a trajectory" in str(whetstone("why", other).exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a-model", "--judge"), "--judge: requires --record"),
        (("a-model", "--judge", "--record", "said.jsonl"), "a-model is a model without a reward; name a run"),
    ],
)
def test_judge_requires_a_run_and_a_record(arguments, message):
    assert message in str(whetstone("serve", *arguments).exception)


def test_episode_with_a_failed_redaction_is_not_stored_and_the_next_is(tmp_path, capsys):
    def redacting(trajectory):
        if trajectory.id == "t/e1":
            raise ValueError("a bug of its own")
        return trajectory

    path = tmp_path / "said.jsonl"
    record = RecordFile(path, redacting)
    record(episode("e1", "five", 1.0))
    record(episode("e2", "six", 1.0))
    assert [stored.id for stored in recorded_episodes(path)] == ["t/e2"]
    assert "t/e1: not kept, since --redact failed: ValueError: a bug of its own" in capsys.readouterr().err
