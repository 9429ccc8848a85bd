"""Columns of somebody else's, and estimators that read them."""

from whetstone.algorithms import PerToken, PerTrajectory, PerTurn, TokenLoss
from whetstone.chat import assistant, user
from whetstone.learning.columns import Columns, by_name, column
from whetstone.learning.token_index import index_groups
from whetstone.trajectory import Author, EndReason, Group, Score, Task, Tokens, Trajectory, Turn

made: list[list[float]] = []
"""What `novelty` said, batch by batch."""


def batch_with(*functions):
    """Two episodes of two turns with two and three action tokens, and these columns beside ours."""
    played = []
    for name, outcome in (("a", 1.0), ("b", 0.0)):
        turns = []
        for context, action in (([1, 2], [3, 4]), ([5], [6, 7, 8])):
            count = len(action)
            sampled = Tokens.sampled(action, logprobs=[-1.0] * count, versions=[0] * count, entropies=[0.5] * count)
            written = Tokens.written(context, Author.ENVIRONMENT)
            turns.append(Turn(written, sampled, assistant("x"), opens_segment=not turns))
        played.append(
            Trajectory(
                name, "t", (user("x"),), tuple(turns), EndReason.TERMINATED, score=Score(outcome, turns=(0.1, 0.2))
            )
        )
    return Columns(index_groups([Group(Task("t", "x"), tuple(played))]), added=by_name(functions))


def _somewhere(run):
    return "play somewhere else: tasks.source: elsewhere"


@column("turn")
def novelty(batch: Columns, *, floor: float = 0.0) -> list[float]:
    """1 where the action of a turn ends with an odd token, `floor` elsewhere."""
    said = [1.0 if sum(held.trajectory.turns[t].action.ids) % 2 else floor for _, held, t in batch.turns()]
    made.append(said)
    return said


@column("token")
def first_of_turn(batch: Columns):
    """1 at the first action token of a turn."""
    return batch.asked_at("first")


@column("turn")
def twice_rewarded(batch: Columns):
    """Twice what a turn was paid."""
    return 2 * batch["turn_rewards"]


@column("trajectory", reads_models=True)
def surprise(batch: Columns):
    """How unlikely an episode is under the policy."""
    return batch["lengths"].clone().zero_().index_add_(0, batch["token_trajectory"], -batch["old_logprobs"])


@column("turn")
def too_few(batch: Columns):
    """One number, whatever was asked."""
    return [1.0, 2.0, 3.0, 4.0, 5.0]


@column("turn")
def words(batch: Columns):
    """No numbers."""
    return ["a" for _ in batch.turns()]


@column("turn")
def alone(batch: Columns):
    """A number."""
    return 3


@column("turn")
def round_about(batch: Columns):
    """Reads one that reads it."""
    return batch["and_back"]


@column("turn")
def and_back(batch: Columns):
    """Reads one that reads it."""
    return batch["round_about"]


@column("token")
def sly(batch: Columns):
    """Asks a model and does not say so."""
    return batch["old_logprobs"]


@column("turn", requires=_somewhere)
def elsewhere(batch: Columns):
    """What is nowhere."""
    return batch["turn_index"]


@column("turn")
def rewards(batch: Columns):
    """Has the name of another."""
    return batch["turn_index"]


@column("token")
def learner_logprobs(batch: Columns):
    """Has the name of what a pass gives."""
    return batch["draws"]


@column("turn")
def process_rewards(batch: Columns):
    """Has the name of another."""
    return batch["turn_index"]


def undeclared(batch: Columns):
    """Says nothing of itself."""
    return batch["turn_index"]


def by_novelty(novelty: PerTurn) -> PerTurn:
    """Credit for what is new."""
    return novelty


def by_surprise(surprise: PerTrajectory) -> PerTrajectory:
    """Credit for what is unlikely."""
    return surprise


def by_first(first_of_turn: PerToken) -> PerToken:
    """Credit for how turns begin."""
    return first_of_turn


def on_first(learner_logprobs, advantages, first_of_turn) -> TokenLoss:
    """Pushes the first token of each turn."""
    return TokenLoss(-advantages * first_of_turn * learner_logprobs, {"first_fraction": first_of_turn})


def on_turns(learner_logprobs, advantages, twice_rewarded) -> TokenLoss:
    """Takes a number a turn for one a token."""
    return TokenLoss(-advantages * twice_rewarded * learner_logprobs, {})


def mistaken(novelty: PerToken) -> PerToken:
    """Takes a number a turn for one a token."""
    return novelty


def by_elsewhere(elsewhere: PerTurn) -> PerTurn:
    """Credit for nothing."""
    return elsewhere


def by_unknown(unheard_of: PerTurn) -> PerTurn:
    """Reads what nobody gives."""
    return unheard_of


@column("turn")
def matched(batch: Columns):
    """Has the name of what a reward says."""
    return batch["turn_index"]


def __getattr__(name):
    if name == "bad_level":  # as where a module that is being imported declares one
        return column("step")(undeclared)
    raise AttributeError(name)
