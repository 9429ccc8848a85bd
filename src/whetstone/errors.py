"""Every error Whetstone raises on purpose, on one page.

A `WhetstoneError` is the user's to mend: it is shown as one line and the command exits with 2.
A `ToolError` is the model's: it reads the text and may try again. An `InfrastructureError` is nobody's in the episode,
which is void then. Anything else is a bug of ours or of a plug-in, and inside an episode it ends that episode with a
recorded reason; a bug of a tool is answered to the model, which may have found it.

Easy to get wrong: a void episode leaves every statistic, so a model that can void one hides its failures. What a model
can bring about, by any code or argument, is therefore the model's outcome, however much it looks like a broken server;
`InfrastructureError` is for what would have failed whatever the model had said.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Iterable

from whetstone.masking import mask_message

_MOST_CHARACTERS = 2000


class WhetstoneError(Exception):
    """Something a person can put right: one line saying what, where, and the nearest right thing.

    What somebody wrote is part of it and may be of many lines; it is one all the same.
    """

    def __init__(self, message: str) -> None:
        line = (
            " ".join(mask_message(message).split("\n")).encode(errors="replace").decode()
        )  # halves of letters cannot be shown
        super().__init__(line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…")


class RecipeError(WhetstoneError):
    """A recipe does not parse, names something unknown, or sets a key that would have no effect."""


class TaskError(WhetstoneError):
    """Tasks could not be read: no such file, an empty file, a line that does not parse."""


class DataError(WhetstoneError):
    """Data of one's own could not be read, or cannot be learned from; the message has file, line and reason."""


class PolicyError(WhetstoneError):
    """A model folder is missing, incomplete, or cannot be used as a policy."""


class PromptTooLong(WhetstoneError):
    """A task's prompt leaves no room for an answer in the model's context."""


class EngineError(WhetstoneError):
    """An engine cannot do what is asked of it, or its server is not what it was said to be."""


class RunDirectoryError(WhetstoneError):
    """A run directory holds another run, no run, or a run that does not match its recipe."""


class NonFiniteError(WhetstoneError):
    """Gradients stopped being numbers, update after update; the last good state is saved."""


class MismatchError(WhetstoneError):
    """Sampler and learner disagree too far on what sampled tokens were worth; the update was not made."""


class LearnerError(WhetstoneError):
    """A process that learns with others ended, or could not begin; what was saved is whole."""


class FaultBudgetError(WhetstoneError):
    """Servers, sandboxes, rewards or our own code failed too often to go on; the last good state is saved."""


class NothingScoredError(FaultBudgetError):
    """Not one episode could be scored, so nothing can be learned or said; the message has the causes."""


class QuotaError(WhetstoneError):
    """So many groups did not count that an update cannot have those it takes."""


class CreditError(WhetstoneError):
    """Credit asks for something that episodes or their rewards do not give."""


class SaveError(WhetstoneError):
    """Something could not be written (disk full, read-only); what existed before is untouched."""


class OutputError(WhetstoneError):
    """Standard output cannot be written."""


class SandboxError(WhetstoneError):
    """Foreign code cannot be run here as it was asked for: no isolation, or one this machine does not offer."""


class DatabaseError(WhetstoneError):
    """A file of SQLite or DuckDB cannot be made, copied or opened."""


class ToolError(Exception):
    """Raised by a tool when the model asked for something impossible; the model reads the text."""


class ToolStop(Exception):
    """Raised by a tool to end the episode; the text is its last observation."""


class EpisodeError(Exception):
    """An environment was used out of order: a step before the first reset, behind the end, or behind `close`."""


class InfrastructureError(Exception):
    """A server, sandbox, engine or backend failed, for any arguments of the model: the trajectory is invalid.

    A tool, environment or reward raises it. The episode is played again (`infrastructure_retries`). If it fails again,
    it leaves all statistics; the failure is never an observation or a reward of 0.

        from whetstone import InfrastructureError

        def lookup_order(id: str) -> str:
            if not pool.is_open:
                raise InfrastructureError("the pool of connections is closed")

    Connection errors, timeouts, HTTP 429 and 5xx that a tool raises are recognized without it.
    """


def innermost(error: BaseException) -> BaseException:
    """What a group of exceptions is about; any other exception itself.

    That is the first in it that is not of the closing down behind it: tasks that were cancelled, streams whose other
    end was gone.
    """
    leaves = [error]
    while groups := [leaf for leaf in leaves if isinstance(leaf, BaseExceptionGroup)]:
        place = leaves.index(groups[0])
        leaves[place : place + 1] = groups[0].exceptions
    return next((leaf for leaf in leaves if not _of_closing(leaf)), leaves[0])


def _of_closing(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError | GeneratorExit) or type(error).__module__.startswith("anyio")


_SURROGATE = re.compile("[\ud800-\udfff]")


def said_by(error: BaseException) -> str:
    """An exception's text, which is foreign code where the exception is: one that raises says so."""
    try:
        return _SURROGATE.sub(
            "\ufffd", mask_message(str(error))
        )  # half of a surrogate pair can be neither written nor printed
    except BaseException as another:  # whatever it is, it is only about a text
        return f"[its text cannot be had: {type(another).__name__}]"


def explained(error: BaseException, *, max_characters: int = 1000) -> str:
    """What an exception is and says, cut off where it says too much.

    >>> explained(KeyError("x")), explained(ExceptionGroup("both", [ValueError("odd")]))
    ("KeyError: 'x'", 'ValueError: odd')
    """
    error = innermost(error)
    text = f"{type(error).__name__}: {said_by(error)}"
    return text if len(text) <= max_characters else f"{text[: max_characters - 1]}…"


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """`; did you mean "…"?` for a near miss, else the choices, else nothing.

    >>> did_you_mean("group_relatve", ["group_relative"])
    '; did you mean "group_relative"?'
    """
    options = sorted(choices)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    if near:
        return f'; did you mean "{near[0]}"?'
    return f"; there are: {', '.join(options)}" if options else ""
