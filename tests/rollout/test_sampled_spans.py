"""Sampled tokens are distinguished from inserted ones anywhere in the context."""

from dataclasses import replace

from whetstone.chat import Context, assistant
from whetstone.rollout.sampled_spans import count_sampled, find_sampled_spans
from whetstone.trajectory import Author, Tokens, TokenSequence, Turn

NOTHING = Tokens.from_ids((), Author.INSERTED)


def sampled_tokens(*ids):
    zeros = (0.0,) * len(ids)
    return Tokens.from_samples(ids, logprobs=zeros, versions=(0,) * len(ids), entropies=zeros)


def turn(context, action, *, opens=False):
    return Turn(Tokens.from_ids(context, Author.ENVIRONMENT), action, assistant(""), opens_segment=opens)


def reads(*ids, new=(), opens=False):
    return Context(TokenSequence(ids), TokenSequence(new), opens, ())


def test_actions_of_the_segment_and_prefix_of_the_next():
    turns = [turn((1, 2), sampled_tokens(3, 4), opens=True), turn((5,), sampled_tokens(6))]
    spliced = Tokens.concatenate([sampled_tokens(8), Tokens.from_ids((9, 10), Author.INSERTED)])
    assert find_sampled_spans(turns, reads(1, 2, 3, 4, 5, 6, 7, new=(7,)), spliced) == ((2, 4), (5, 6), (7, 8))


def test_sampled_spans_inside_an_action():
    mixed = Tokens.concatenate([sampled_tokens(3), Tokens.from_ids((4, 5), Author.INSERTED), sampled_tokens(6, 7)])
    assert find_sampled_spans([turn((1, 2), mixed, opens=True)], reads(1, 2, 3, 4, 5, 6, 7, 8), NOTHING) == (
        (2, 3),
        (5, 7),
    )


def test_only_spans_of_the_last_segment_are_returned():
    turns = [turn((1,), sampled_tokens(2), opens=True), turn((9, 9), sampled_tokens(3), opens=True)]
    assert find_sampled_spans(turns, reads(9, 9, 3, 4), NOTHING) == ((2, 3),)
    assert find_sampled_spans(turns, reads(5, 5, opens=True), sampled_tokens(6)) == ((2, 3),)


def test_demonstrations_and_replacements_are_not_sampled():
    demonstration = Tokens.from_ids((3, 4), Author.EXPERT)
    assert find_sampled_spans([turn((1, 2), demonstration, opens=True)], reads(1, 2, 3, 4, 5), NOTHING) == ()
    assert find_sampled_spans([turn((1, 2), sampled_tokens(3, 4), opens=True)], reads(1, 2, 7, 7, 5), NOTHING) == ()


def test_tokens_of_masked_turns_are_sampled_and_other_inserted_tokens_are_not():
    inserted = Tokens.from_ids((3, 4), Author.INSERTED)
    masked = replace(inserted, versions=(0, 0))
    assert (count_sampled(inserted), count_sampled(masked)) == (0, 2)
    assert find_sampled_spans([turn((1, 2), inserted, opens=True)], reads(1, 2, 3, 4, 5), NOTHING) == ()
    assert find_sampled_spans([turn((1, 2), masked, opens=True)], reads(1, 2, 3, 4, 5), NOTHING) == ((2, 4),)
