"""Provenance of trajectories: stored, derived for older files, and counted without overlap."""

from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.episodes import path, turn
from whetstone.data.offline_episodes import mark_offline
from whetstone.rollout.replay.buffer import mark_replayed
from whetstone.tools.protocol import find_provenance
from whetstone.training.supervised import cost_metrics, step_cost_metrics
from whetstone.training.train_step import count_provenances
from whetstone.trajectory import Author, Costs, Group, OffPolicy, Provenance, Task, Tokens
from whetstone.trajectory_json import decode_trajectories, encode_trajectory

TRAJECTORIES = st.builds(
    lambda number, provenance, turns: path(str(number), 1, [turn("4")] * turns, provenance=provenance),
    st.integers(0, 99),
    st.sampled_from(Provenance),
    st.integers(0, 3),
)
GROUPS = st.lists(
    st.builds(
        lambda trajectories, tokens: Group(Task("t", ""), tuple(trajectories), costs=Costs(tokens, 0, tokens, 0)),
        st.lists(TRAJECTORIES, max_size=4),
        st.integers(0, 50),
    ),
    max_size=4,
)


@pytest.mark.parametrize("provenance", Provenance)
def test_provenance_is_stored(provenance):
    (read,) = decode_trajectories([encode_trajectory(path("a", 1, provenance=provenance))])
    assert read.provenance is provenance


def older(trajectory, *marks):
    """Return the line that a version without provenance wrote."""
    row = orjson.loads(encode_trajectory(trajectory))
    del row["provenance"]
    return orjson.dumps(row | {"marks": list(marks)})


@pytest.mark.parametrize(
    ("marks", "provenance"),
    [
        ((), Provenance.SAMPLED),
        (("hinted",), Provenance.SAMPLED),
        (("hinted", "replayed"), Provenance.REPLAYED),
        (("intervened",), Provenance.HUMAN),
        (("replaced",), Provenance.HUMAN),
    ],
)
def test_provenance_of_an_older_file_is_derived_from_its_marks(marks, provenance):
    (read,) = decode_trajectories([older(path("a", 1), *marks)])
    assert (read.provenance, read.marks) == (provenance, tuple(mark for mark in marks if mark != "replayed"))


def test_older_episode_of_an_expert_is_demonstrated():
    demonstration = turn("4")
    object.__setattr__(demonstration, "action", Tokens.from_ids((1, 2), Author.EXPERT))
    (read,) = decode_trajectories([older(path("a", 1, [demonstration]))])
    assert read.provenance is Provenance.DEMONSTRATED


@given(GROUPS)
def test_sums_over_provenances_are_the_totals(groups):
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    counts = count_provenances(trajectories)
    assert sum(n for name, n in counts.items() if not name.endswith("_tokens")) == len(trajectories)
    assert sum(n for name, n in counts.items() if name.endswith("_tokens")) == sum(
        trajectory.action_tokens for trajectory in trajectories
    )


@given(GROUPS)
def test_stored_trajectories_are_never_sampled_and_cost_nothing_again(groups):
    stored = [mark_offline(group, "again/") for group in groups]
    stored += [
        replace(g, trajectories=tuple(mark_replayed(t, "x/", OffPolicy.RECOMPUTE) for t in g.trajectories))
        for g in stored
    ]
    assert not any(trajectory.provenance.is_fresh for group in stored for trajectory in group.trajectories)
    assert "provenance/sampled" not in count_provenances(t for group in stored for t in group.trajectories)
    assert set(step_cost_metrics(stored).values()) == {0.0}
    assert set(cost_metrics(stored).values()) == {0.0}
    assert step_cost_metrics([*groups, *stored]) == step_cost_metrics(groups)


@given(GROUPS)
def test_episodes_that_are_spent_are_those_that_the_policy_played(groups):
    played = [t for group in groups for t in group.trajectories if t.provenance in ("sampled", "imagined")]
    assert step_cost_metrics(groups)["cost_per_step/episodes"] == len(played)


def test_parts_of_an_episode_declare_its_provenance():
    class Imagines:
        provenance = "imagined"

    class Shows:
        provenance = Provenance.DEMONSTRATED

    assert find_provenance(object(), object()) is Provenance.SAMPLED
    assert find_provenance(object(), Imagines()) is Provenance.IMAGINED
    assert find_provenance(Shows(), Imagines()) is Provenance.DEMONSTRATED
    with pytest.raises(ValueError, match="'dreamt' is not a valid Provenance"):
        find_provenance(type("Dreams", (), {"provenance": "dreamt"})())
