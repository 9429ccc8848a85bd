"""What was drawn is told from what was given, wherever it lies in what the policy reads."""

from whetstone.chat import Context, assistant
from whetstone.rollout.drawn import drawn_spans
from whetstone.trajectory import Author, Tokens, TokenSequence, Turn

NOTHING = Tokens.written((), Author.INSERTED)


def drawn(*ids):
    zeros = (0.0,) * len(ids)
    return Tokens.sampled(ids, logprobs=zeros, versions=(0,) * len(ids), entropies=zeros)


def turn(context, action, *, opens=False):
    return Turn(Tokens.written(context, Author.ENVIRONMENT), action, assistant(""), opens_segment=opens)


def reads(*ids, new=(), opens=False):
    return Context(TokenSequence(ids), TokenSequence(new), opens, ())


def test_actions_of_the_segment_and_what_the_next_one_begins_with():
    turns = [turn((1, 2), drawn(3, 4), opens=True), turn((5,), drawn(6))]
    spliced = Tokens.joined([drawn(8), Tokens.written((9, 10), Author.INSERTED)])
    assert drawn_spans(turns, reads(1, 2, 3, 4, 5, 6, 7, new=(7,)), spliced) == ((2, 4), (5, 6), (7, 8))


def test_runs_of_the_policys_own_tokens_inside_an_action():
    mixed = Tokens.joined([drawn(3), Tokens.written((4, 5), Author.INSERTED), drawn(6, 7)])
    assert drawn_spans([turn((1, 2), mixed, opens=True)], reads(1, 2, 3, 4, 5, 6, 7, 8), NOTHING) == ((2, 3), (5, 7))


def test_only_what_lies_in_the_last_segment():
    turns = [turn((1,), drawn(2), opens=True), turn((9, 9), drawn(3), opens=True)]
    assert drawn_spans(turns, reads(9, 9, 3, 4), NOTHING) == ((2, 3),)
    assert drawn_spans(turns, reads(5, 5, opens=True), drawn(6)) == ((2, 3),)


def test_demonstrations_and_what_was_put_in_their_place_are_given():
    shown = Tokens.written((3, 4), Author.EXPERT)
    assert drawn_spans([turn((1, 2), shown, opens=True)], reads(1, 2, 3, 4, 5), NOTHING) == ()
    assert drawn_spans([turn((1, 2), drawn(3, 4), opens=True)], reads(1, 2, 7, 7, 5), NOTHING) == ()
