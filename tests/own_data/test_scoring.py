"""`whetstone data score` writes stored episodes with the scores of another reward."""

import json
import math

import pytest

from support import episodes
from support.cli import whetstone
from support.small import SMALL
from whetstone.data import load_rows, read_preference
from whetstone.data.offline_episodes import count_same_order
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress, read_trajectories
from whetstone.training import train

PAIRWISE = "reward={name: pairwise_judge, judge: {name: scripted, answers: 'support.judges:prefers_short'}}"


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """A folder with a run of one update whose rewards are all 0."""
    folder = tmp_path_factory.mktemp("sampled")
    small = [
        *SMALL,
        "ablations={}",
        "supervised=null",
        "rollout.group_size=4",
        "evaluation.episodes=1",
        "reinforcement.steps=1",
    ]
    train(load_recipe("demo", small), folder / "run", progress=Progress(quiet=True))
    return folder


def score(folder, *words):
    return whetstone("data", "score", "run", *words, cwd=folder)


def test_scores_of_another_reward_are_written(sampled):
    done = score(sampled, "reward=support.small:parity", "-o", "scored.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    scored = read_trajectories(sampled / "scored.jsonl")
    expected = [sum(sum(turn.action.ids) for turn in each.turns) % 2 for each in scored]
    assert [each.score.value for each in scored] == expected
    assert (report["episodes"], report["without_score"]) == (8, 0)
    assert report["mean_after"] == pytest.approx(sum(expected) / 8)


def test_judge_labels_pairs_of_stored_episodes(sampled):
    done = score(sampled, PAIRWISE, "--as", "pairs", "-o", "pairs.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["judge/requests"] == 2 * 2 * 6  # two groups of four have six pairs each, both orders
    rows = load_rows(sampled / "pairs.jsonl")
    assert 1 <= len(rows) == report["rows"] <= 2
    for row in rows:
        (better, _), (worse, _) = read_preference(row).answers
        length = [sum(len(str(message.to_openai())) for message in each.messages) for each in (better, worse)]
        assert length[0] < length[1]


def test_pairs_of_equal_rewards_are_reported_as_such(sampled):
    done = score(sampled, "reward=support.small:generous", "--as", "pairs", "-o", "equal.jsonl")
    assert done.returncode == 2
    assert "of 8 episodes 0 have no score; no two scored episodes of a task differ in reward" in done.stderr


def test_replay_names_why_a_new_reward_fails(sampled):
    done = whetstone("replay", "run", "reward=support.small:torn", cwd=sampled)
    assert "→ none: the reward failed: " in done.stdout
    assert "the judge is down" in done.stdout


def test_episodes_without_a_score_are_not_written(sampled):
    done = score(sampled, "reward=support.small:torn", "-o", "torn.jsonl")
    assert done.returncode == 2
    assert "run: no rows: of 8 episodes 8 have no score: the reward failed: " in done.stderr
    assert "ConnectionError: the judge is down (8)" in done.stderr
    assert "no two" not in done.stderr
    assert not (sampled / "torn.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reward=exact_mach", "-o", "x.jsonl"], 'did you mean "exact_match"'),
        (["reward=exact_match", "-o", "run/recipe.yaml"], "exists; choose another name"),
        (["rollout.group_size=9", "reward=support.small:parity", "-o", "y.jsonl"], "has no effect here"),
    ],
)
def test_mistakes_are_one_line(sampled, words, message):
    done = score(sampled, *words)
    assert message in done.stderr
    assert done.returncode == (0 if "no effect" in message else 2)


def test_pairs_in_the_same_order_are_counted():
    group = episodes.group
    # (0, 1), (0, 2), (1, 2): kept, reversed, tied after
    before, after = [group(0.0, 1.0, 2.0), group(1.0, 1.0)], [group(5.0, 6.0, 4.0), group(0.0, 1.0)]
    assert count_same_order(before, after) == (1, 3)


@pytest.mark.slow
def test_policy_trains_on_pairs_that_a_judge_labeled(sampled):
    done = score(sampled, PAIRWISE, "--as", "pairs", "-o", "labeled.jsonl")
    assert done.returncode == 0, done.stderr
    data = str(sampled / "labeled.jsonl")
    keys = [*SMALL, "ablations={}", "supervised=null", "reinforcement.steps=1", "evaluation.episodes=1"]
    keys.append(f"preference={{data: {{path: {data}}}, steps: 8, batch_size: 1, learning_rate: 1.0e-2}}")
    train(load_recipe("demo", keys), sampled / "trained", progress=Progress(quiet=True))
    path = sampled / "trained" / "stages" / "1-preference" / "metrics.jsonl"
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    first, last = steps[0], steps[-1]
    assert first["loss/policy"] == pytest.approx(math.log(2), abs=1e-6)
    assert (first["preference/margin"], last["preference/accuracy"]) == (0.0, 1.0)
    assert last["preference/margin"] > 0.1
