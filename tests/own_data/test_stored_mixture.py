"""Stored groups are mixed with fresh ones: how many, which ones, and the same again if an update is repeated."""

import asyncio
import math
from collections import Counter

import pytest

from support.episodes import group, path, turn
from whetstone.data import StoredMixture
from whetstone.data.offline_episodes import mark_offline
from whetstone.data.offline_mixture import compute_improvement, compute_priorities
from whetstone.errors import DataError
from whetstone.recipe import StoredMixtureSettings
from whetstone.rollout.group_sources import MixedSource
from whetstone.training.group_mixer import GroupMixer, total_groups
from whetstone.trajectory import Author, Group, OffPolicy, Provenance, Tokens

GROUPS = [group(k / 9, k / 9, number=k) for k in range(10)]


def mixture(histories=(GROUPS,), *, fresh=4, seed=1, **settings):
    settings = StoredMixtureSettings(data="x", **settings)
    source = StoredMixture(lambda: histories, settings, seed=seed)
    mixed = MixedSource(source, settings.fraction, mixture=settings, off_policy=source.off_policy)
    sources = {"stored": mixed}
    return GroupMixer(sources, groups=total_groups(sources, fresh))


def source_of(mixer):
    return mixer.sources["stored"].source


def groups(mixer, update):
    """Return the groups of an update that is not recorded."""
    return asyncio.run(mixer.take(update, {})).groups["stored"]


def due(mixer, update):
    return mixer.count_before("stored", update + 1) - mixer.count_before("stored", update)


def drawn(mixer, updates):
    return [t.id.split("/")[1] for u in range(updates) for g in groups(mixer, u) for t in g.trajectories[:1]]


def ids(taken):
    return [trajectory.id for g in taken for trajectory in g.trajectories]


def test_fraction_of_one_half_adds_as_many_stored_groups_as_are_sampled():
    assert [due(mixture(), update) for update in range(3)] == [4, 4, 4]
    assert len(groups(mixture(), 7)) == 4


@pytest.mark.parametrize("share", [0.1, 0.25, 1 / 3, 0.6, 0.9])
def test_fraction_is_exact_over_many_updates(share):
    mixed = mixture(fraction=share, fresh=6)
    total = sum(due(mixed, update) for update in range(900))
    assert total / (total + 900 * 6) == pytest.approx(share, abs=1e-3)


def test_fraction_of_zero_opens_no_file():
    mixer = mixture(fraction=0)
    source = source_of(mixer)
    source._read = lambda: 1 / 0
    assert groups(mixer, 3) == ()
    source.load_state(source.state())
    assert source.read() == []


def test_every_stored_group_is_used_before_any_repeats():
    names = drawn(mixture(fresh=5), 2)
    assert sorted(names) == sorted(str(k) for k in range(10))


@pytest.mark.parametrize("prefer", ["uniform", "reward", "recency", "improvement"])
def test_selection_of_an_update_is_deterministic(prefer):
    once, second = mixture(sampling=prefer), mixture(sampling=prefer)
    assert [t.id for g in groups(second, 5) for t in g.trajectories] == [
        t.id for g in groups(once, 5) for t in g.trajectories
    ]
    assert drawn(mixture(sampling=prefer, seed=2), 3) != drawn(once, 3)


def test_preferred_groups_are_sampled_in_proportion_to_the_exponential():
    # rewards 0 and 1 at strength ln 3: 1 and 3 of 4
    pair = [group(0.0, 0.0, number=0), group(1.0, 1.0, number=1)]
    names = Counter(drawn(mixture([pair], sampling="reward", sampling_strength=math.log(3)), 100))
    assert names["1"] / 400 == pytest.approx(0.75, abs=0.06)
    flat = Counter(drawn(mixture([pair], sampling="reward", sampling_strength=0), 50))
    assert flat["0"] == flat["1"]


def test_preference_worked_numbers():
    assert compute_priorities([[0.2, 0.6], [1.0]], "reward") == pytest.approx([0, 0.5, 1])
    assert compute_priorities([[9, 9, 9], [9]], "recency") == [0, 0.5, 1, 1]
    # from 0 to 1 in a line; and flat in the middle
    assert compute_priorities([[0, 1, 2], [1, 1]], "improvement") == pytest.approx([1, 1, 1, 0, 0])
    assert compute_priorities([[3, 3]], "reward") == [0, 0]


def test_score_of_a_history_is_its_rise_minus_its_deviation():
    assert compute_improvement([0, 0.5, 1]) == pytest.approx(1)
    assert compute_improvement([1, 0.5, 0]) == pytest.approx(-1)
    assert compute_improvement([0.4]) == 0
    # 0 1 0: no rise; mean 1/3, left −1/3, 2/3, −1/3, whose deviation is √(2/9)
    assert compute_improvement([0, 1, 0]) == pytest.approx(-math.sqrt(2 / 9))


def test_stored_groups_are_older_than_every_version_and_have_distinct_names():
    repeated = groups(mixture(fresh=20), 0)  # each is used twice
    assert len(set(ids(repeated))) == len(ids(repeated)) == 40
    stored = repeated[0].trajectories[0]
    assert set(stored.turns[0].action.versions) == {-1}
    assert stored.provenance is Provenance.REPLAYED
    assert stored.off_policy is OffPolicy.STORED


def test_turn_shared_by_trajectories_stays_one_object():
    shared = turn("first")
    both = Group(
        GROUPS[0].task, (path("a", 1.0, [shared, turn("x")]), path("b", 0.0, [shared], parent="a", fork_turn=1))
    )
    one, other = mark_offline(both, "again/").trajectories
    assert one.turns[0] is other.turns[0]
    assert (other.parent, other.fork_turn) == ("again/a", 1)


def test_written_text_starts_at_ratio_one_and_has_no_log_probs():
    written_turn = turn("by hand")
    written = Tokens.from_ids(written_turn.action.ids, Author.CORRECTED)
    by_hand = Group(
        GROUPS[0].task,
        (
            path(
                "a", 1.0, [type(written_turn)(written_turn.context, written, written_turn.message, opens_segment=True)]
            ),
        ),
    )
    assert mark_offline(by_hand, "").trajectories[0].off_policy is OffPolicy.RECOMPUTE
    with pytest.raises(DataError, match="a: has no log-probs of the sampler, which off_policy: stored"):
        source_of(mixture([[by_hand]], off_policy="stored")).read()


def test_resumed_run_uses_only_its_original_episodes():
    began = source_of(mixture()).state()
    resumed = source_of(mixture())
    resumed.load_state(began)
    assert len(resumed.read()) == 10
    other = mixture([GROUPS[:9]])
    source_of(other).load_state(began)
    with pytest.raises(DataError, match="stored episodes have changed"):
        groups(other, 0)
