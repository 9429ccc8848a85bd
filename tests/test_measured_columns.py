"""Measurements of sampling stay with their tokens on the way to an estimator and to a file."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from support.episodes import path
from whetstone.inference import Generation
from whetstone.trajectory import Author, Media, Tokens, TokenSequence
from whetstone.trajectory_json import decode_trajectories, encode_trajectory

NUMBERS = st.floats(allow_nan=False, width=32)


@st.composite
def generations(draw):
    count = draw(st.integers(0, 5))
    column = tuple(float(i) for i in range(count))
    names = draw(st.sets(st.sampled_from(["margin", "rank"])))
    measured = {name: tuple(draw(st.lists(NUMBERS, min_size=count, max_size=count))) for name in sorted(names)}
    return Generation(tuple(range(count)), column, column, (1,) * count, "stop", 0.0, column, measured=measured)


def known(generation, name):
    """Sample a column [T], or None if it was not measured."""
    return list(generation.measured.get(name, [None] * len(generation.tokens)))


@given(generations(), generations())
def test_continued_generation_has_the_columns_of_both(first, second):
    both = first + second
    assert both.tokens == first.tokens + second.tokens
    for name in ("margin", "rank"):
        values = [None if v is None or math.isnan(v) else v for v in known(both, name)]
        assert values == known(first, name) + known(second, name)
    count = len(first.tokens)
    assert both[count:].tokens == second.tokens
    assert [known(both[count:], name) for name in second.measured] == [known(second, name) for name in second.measured]


@given(generations(), generations())
def test_tokens_of_an_action_keep_columns_when_joined_and_split(first, second):
    joined = Tokens.concatenate([first.to_tokens(), Tokens.from_ids([9], Author.INSERTED), second.to_tokens()])
    for name in joined.measured:
        values = [None if math.isnan(v) else v for v in joined.measured[name]]
        assert values == [*known(first, name), None, *known(second, name)]
    assert joined[: len(first.tokens)].ids == first.tokens


def test_media_and_measured_columns_are_stored_without_the_content():
    trajectory = path("a", 1.0)
    turn = trajectory.turns[0]
    picture = TokenSequence([1, 2, 2, 3], [Media(1, 2, "d1", payload=b"pixels")])
    action = replace(turn.action, measured={"margin": (math.nan, *[-math.inf] * (len(turn.action) - 1))})
    turn = replace(turn, context=Tokens.from_ids(picture, Author.ENVIRONMENT), action=action)
    trajectory = replace(trajectory, turns=(turn, *trajectory.turns[1:]))
    line = encode_trajectory(trajectory)
    assert b"pixels" not in line
    (read,) = decode_trajectories([line])
    assert read.turns[0].context.sequence == picture
    assert read.turns[0].context.media[0].payload is None
    margins = read.turns[0].action.measured["margin"]
    assert math.isnan(margins[0])
    assert margins[1:] == action.measured["margin"][1:]
