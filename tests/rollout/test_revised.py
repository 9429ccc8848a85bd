"""A failed path turns round behind its first wrong turn and goes on as a sibling did."""

import math
from dataclasses import replace

import pytest

from tests_episodes import CHAT, call, collected
from whetstone.chat import assistant
from whetstone.rollout.strategies import Independent, Revised
from whetstone.rollout.strategies.revised import revision, shared_turns
from whetstone.trajectory import Author, Score
from whetstone.trajectory_json import decoded_trajectories, encoded_trajectory

REFLECTION = "That was wrong. Another way: "


class Words:
    def written(self, text):
        return tuple(CHAT.tokenizer.encode(text, add_special_tokens=False))


def parted(moment):
    """The even samples do it right; the odd ones call in vain, look, and answer wrongly."""
    right = int(moment.episode.rpartition("#")[2]) % 2 == 0
    said = [call("12*34"), assistant("408")] if right else [call("12*34+"), call("1+1"), assistant("2")]
    return said[min(moment.turn, len(said) - 1)]


def test_a_revision_is_the_wrong_turn_the_reflection_and_the_good_way():
    good, bad = collected(Independent(group_size=2), parted).trajectories
    revised = revision(bad, good, REFLECTION, Words())
    assert (good.solved, bad.solved, revised.solved) == (True, False, True)
    assert revised.score == good.score
    assert "revised" in revised.marks
    (segment,) = revised.segments()
    text = CHAT.tokenizer.decode(segment.tokens.ids)
    trained = CHAT.tokenizer.decode(
        [id for id, mask in zip(segment.tokens.ids, segment.action_mask, strict=True) if mask]
    )
    # the wrong call and what came back are read, the reflection and the good way are trained
    assert "12*34+" in text
    assert "12*34+" not in trained
    assert trained.startswith(REFLECTION)
    assert trained.count("12*34") == 1
    assert "408" in trained
    assert "1+1" not in text  # behind the cut nothing of the bad path is left
    # token by token it is what was said there: prompt and wrong turn of the one, actions of the other
    opening, wrong = bad.turns[0].context.ids, bad.turns[0].action.ids
    turned = (*Words().written(REFLECTION), *good.turns[0].action.ids)
    answered = (*good.turns[1].context.ids, *good.turns[1].action.ids)
    assert segment.tokens.ids == (*opening, *wrong, *bad.turns[1].context.ids, *turned, *answered)
    authors = {author for author, mask in zip(segment.tokens.authors, segment.action_mask, strict=True) if mask}
    assert authors == {Author.CORRECTED}
    assert all(math.isnan(p) for p, m in zip(segment.tokens.logprobs, segment.action_mask, strict=True) if m)


def test_a_fork_that_failed_turns_round_behind_what_it_shares_with_its_parent():
    good, bad, revised = collected(Revised(group_size=2), parted).trajectories
    assert (bad.parent, bad.fork_turn) == (good.id, 1)
    assert revised.turns[0] is bad.turns[0] is good.turns[0]
    assert [t.message.text for t in revised.turns] == ["", "", f"{REFLECTION}408"]
    (segment,) = revised.segments()
    shared = sum(len(t.action) for t in good.turns)
    # the shared call keeps its log-probs, the wrong one is read, reflection and answer are trained
    assert sum(segment.action_mask) == shared + len(Words().written(REFLECTION))


def test_turns_that_are_shared_stay_the_same_objects_also_on_record():
    good, bad, _ = collected(Revised(group_size=2), parted).trajectories
    forked = replace(good, id="g/t#5", turns=(*bad.turns[:1], *good.turns[1:]), parent=bad.id, fork_turn=1)
    assert shared_turns(bad, forked) == 1
    longer = replace(bad, turns=(*bad.turns[:2], *bad.turns[1:]))
    made = revision(longer, forked, REFLECTION, Words())
    assert made.turns[0] is bad.turns[0]
    assert (made.parent, made.fork_turn) == (bad.id, 1)
    _, again = decoded_trajectories([encoded_trajectory(each) for each in (longer, made)])
    assert [t.action.ids for t in again.turns] == [t.action.ids for t in made.turns]
    assert [t.action.authors for t in again.turns] == [t.action.authors for t in made.turns]


def test_where_it_cannot_be_there_is_none():
    good, bad = collected(Independent(group_size=2), parted).trajectories
    assert revision(replace(bad, turns=bad.turns[:1]), good, REFLECTION, Words()) is None  # nothing came back
    assert revision(bad, replace(good, score=Score(1.0, turns=(0.0, 1.0))), REFLECTION, Words()) is None
    assert revision(bad, replace(good, opening=()), REFLECTION, Words()) is None
    rewritten = replace(good.turns[1], opens_segment=True)
    assert revision(bad, replace(good, turns=(good.turns[0], rewritten)), REFLECTION, Words()) is None


@pytest.mark.parametrize(("said", "solved"), [(["408"], 3), (["7"], 0)])
def test_where_all_succeed_or_all_fail_nothing_is_revised(said, solved):
    group = collected(Revised(group_size=3), lambda moment: assistant(said[0]))
    assert len(group.trajectories) == 3
    assert sum(t.solved for t in group.trajectories) == solved
