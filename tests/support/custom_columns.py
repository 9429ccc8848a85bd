"""Custom columns, and estimators that read them."""

from whetstone.algorithms import PerToken, PerTrajectory, PerTurn, TokenLoss
from whetstone.chat import assistant, user
from whetstone.learning.columns import Columns, collect_columns, column
from whetstone.learning.token_index import index_groups
from whetstone.trajectory import Author, EndReason, Group, Score, Task, Tokens, Trajectory, Turn

recorded: list[list[float]] = []
"""What `novelty` said, batch by batch."""


def batch_with(*functions):
    """Return two episodes of two turns with two and three action tokens, with additional columns."""
    played = []
    for name, outcome in (("a", 1.0), ("b", 0.0)):
        turns = []
        for context, action in (([1, 2], [3, 4]), ([5], [6, 7, 8])):
            count = len(action)
            sampled = Tokens.from_samples(
                action, logprobs=[-1.0] * count, versions=[0] * count, entropies=[0.5] * count
            )
            written = Tokens.from_ids(context, Author.ENVIRONMENT)
            turns.append(Turn(written, sampled, assistant("x"), opens_segment=not turns))
        played.append(
            Trajectory(
                name, "t", (user("x"),), tuple(turns), EndReason.TERMINATED, score=Score(outcome, turns=(0.1, 0.2))
            )
        )
    return Columns(index_groups([Group(Task("t", "x"), tuple(played))]), custom=collect_columns(functions))


def _somewhere(run):
    return "play somewhere else: tasks.source: elsewhere"


@column("turn")
def novelty(batch: Columns, *, floor: float = 0.0) -> list[float]:
    """Return 1 if the action of a turn ends with an odd token, otherwise `floor`."""
    values = [1.0 if sum(indexed.trajectory.turns[t].action.ids) % 2 else floor for _, indexed, t in batch.turns()]
    recorded.append(values)
    return values


@column("token")
def first_of_turn(batch: Columns):
    """Return 1 at the first action token of a turn."""
    return batch.critics.find_positions("first")


@column("turn")
def twice_rewarded(batch: Columns):
    """Return twice the reward of a turn."""
    return 2 * batch["turn_rewards"]


@column("trajectory", reads_models=True)
def surprise(batch: Columns):
    """Return the negative log-likelihood of an episode under the policy."""
    return batch["lengths"].clone().zero_().index_add_(0, batch["token_trajectory"], -batch["old_logprobs"])


@column("turn")
def too_few(batch: Columns):
    """Return one number for any input."""
    return [1.0, 2.0, 3.0, 4.0, 5.0]


@column("turn")
def words(batch: Columns):
    """Return texts instead of numbers."""
    return ["a" for _ in batch.turns()]


@column("turn")
def alone(batch: Columns):
    """Return a scalar."""
    return 3


@column("turn")
def round_about(batch: Columns):
    """Read a column that reads this one."""
    return batch["and_back"]


@column("turn")
def and_back(batch: Columns):
    """Read a column that reads this one."""
    return batch["round_about"]


@column("token")
def sly(batch: Columns):
    """Call a model without declaring it."""
    return batch["old_logprobs"]


@column("turn", requires=_somewhere)
def elsewhere(batch: Columns):
    """Read a column that does not exist."""
    return batch["turn_index"]


@column("turn")
def rewards(batch: Columns):
    """Have the name of a built-in column."""
    return batch["turn_index"]


@column("token")
def learner_logprobs(batch: Columns):
    """Have the name of a column of the forward pass."""
    return batch["draws"]


@column("turn")
def process_rewards(batch: Columns):
    """Have the name of a built-in column."""
    return batch["turn_index"]


def undeclared(batch: Columns):
    """Declare nothing."""
    return batch["turn_index"]


def by_novelty(novelty: PerTurn) -> PerTurn:
    """Credit turns for novelty."""
    return novelty


def by_surprise(surprise: PerTrajectory) -> PerTrajectory:
    """Credit unlikely episodes."""
    return surprise


def by_first(first_of_turn: PerToken) -> PerToken:
    """Credit first tokens of turns."""
    return first_of_turn


def on_first(learner_logprobs, advantages, first_of_turn) -> TokenLoss:
    """Add credit at the first token of each turn."""
    return TokenLoss(-advantages * first_of_turn * learner_logprobs, {"first_fraction": first_of_turn})


def on_turns(learner_logprobs, advantages, twice_rewarded) -> TokenLoss:
    """Return one number per turn instead of one per token."""
    return TokenLoss(-advantages * twice_rewarded * learner_logprobs, {})


def mistaken(novelty: PerToken) -> PerToken:
    """Return one number per turn instead of one per token."""
    return novelty


def by_elsewhere(elsewhere: PerTurn) -> PerTurn:
    """Read a column whose source does not exist."""
    return elsewhere


def by_unknown(unheard_of: PerTurn) -> PerTurn:
    """Read a column without a source."""
    return unheard_of


@column("turn")
def matched(batch: Columns):
    """Have the name of a column of a reward."""
    return batch["turn_index"]


def __getattr__(name):
    if name == "bad_level":  # as in a module that declares one during its import
        return column("step")(undeclared)
    raise AttributeError(name)
