"""Exceptions of Whetstone, by who can correct the problem.

- `WhetstoneError`: the user. The message is one line, and the command exits with code 2.
- `ToolError`: the model, which reads the text and may retry.
- `InfrastructureError`: neither; a server or sandbox failed, and the episode becomes invalid.
- Any other exception is a bug of Whetstone or of a plug-in. Inside an episode it ends that episode with a recorded
  reason. A bug of a tool is returned to the model as a result, since the model may have triggered it.

Note:
    An invalid episode leaves every statistic, so a model that can invalidate one hides its failures. Whatever a model
    can cause, by any code or argument, is therefore the model's outcome, even if it resembles a broken server.
    `InfrastructureError` is for failures that do not depend on the model's output.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Iterable

from whetstone.masking import mask_message

_MOST_CHARACTERS = 2000


class WhetstoneError(Exception):
    """Base class of problems that the user can correct.

    The message is one line: place, problem and remedy. Line breaks in quoted user input are removed.
    """

    def __init__(self, message: str) -> None:
        line = (
            " ".join(mask_message(message).split("\n")).encode(errors="replace").decode()
        )  # halves of letters cannot be shown
        super().__init__(line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…")


class RecipeError(WhetstoneError):
    """A recipe does not parse, has an unknown name, or sets a key without effect."""


class TaskError(WhetstoneError):
    """Tasks cannot be read: the file does not exist or is empty, or a row does not parse."""


class DataError(WhetstoneError):
    """Training data cannot be read or trained on; the message has file, line and reason."""


class PolicyError(WhetstoneError):
    """A model folder is missing or incomplete, or cannot be used as a policy."""


class PromptTooLong(WhetstoneError):
    """The prompt of a task leaves no tokens for a response in the model's context."""


class EngineError(WhetstoneError):
    """An engine does not support a request, or its server does not match the recipe."""


class WeightSyncError(EngineError):
    """An engine does not sample from the weights that the run sent; the last good state is saved."""


class RunDirectoryError(WhetstoneError):
    """A run directory contains another run or no run, or does not match its recipe."""


class NonFiniteError(WhetstoneError):
    """Gradients are not finite in several consecutive updates; the last good state is saved."""


class MismatchError(WhetstoneError):
    """Log-probs of sampler and learner differ too much; the run stops before the update."""


class PartialUpdateError(WhetstoneError):
    """An update failed after some of its optimizer steps; the weights in memory belong to no step of the run."""


class LearnerError(WhetstoneError):
    """A process of distributed training died or did not start; saved checkpoints are complete."""


class TooManyFailuresError(WhetstoneError):
    """Too many episodes failed by an infrastructure error; the last good state is saved."""


class NoScoredEpisodesError(TooManyFailuresError):
    """No episode has a score, so there is nothing to train on; the message has the causes."""


class SamplingExhausted(WhetstoneError):
    """Dynamic sampling found too few groups that pass its filter for one update."""


class CreditError(WhetstoneError):
    """Credit assignment needs values that the episodes or their rewards do not have."""


class SaveError(WhetstoneError):
    """A file cannot be written (full disk, read-only); the previous content is unchanged."""


class OutputError(WhetstoneError):
    """Standard output cannot be written, for example because the disk is full."""


class SandboxError(WhetstoneError):
    """Untrusted code cannot run isolated as requested, for example on this machine."""


class DatabaseError(WhetstoneError):
    """A SQLite or DuckDB file cannot be created, copied or opened."""


class ToolError(Exception):
    """Error of a tool that the model can correct.

    A tool raises it if the model asked for something impossible. The model reads the text.
    """


class ToolStop(Exception):
    """Exception that a tool raises to end the episode; its text is the last observation."""


class EpisodeError(Exception):
    """An environment was used out of order: a step before `reset`, or after the end."""


class InfrastructureError(Exception):
    """Failure of a server, sandbox or backend that is independent of the model's output.

    A tool, environment or reward raises it. The episode is played again (`infrastructure_retries`). If it fails again,
    it leaves all statistics; the failure is never an observation or a reward of 0.

        from whetstone import InfrastructureError

        def lookup_order(id: str) -> str:
            if not pool.is_open:
                raise InfrastructureError("the pool of connections is closed")

    Connection errors, timeouts, HTTP 429 and 5xx that a tool raises are recognized without it.
    """


def root_exception(error: BaseException) -> BaseException:
    """Return the exception that caused an exception group; any other exception unchanged.

    It is the first exception that does not result from the cleanup after the failure, such as cancelled tasks and
    closed streams.
    """
    leaves = [error]
    while groups := [leaf for leaf in leaves if isinstance(leaf, BaseExceptionGroup)]:
        place = leaves.index(groups[0])
        leaves[place : place + 1] = groups[0].exceptions
    return next((leaf for leaf in leaves if not _of_closing(leaf)), leaves[0])


def _of_closing(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError | GeneratorExit) or type(error).__module__.startswith("anyio")


_SURROGATE = re.compile("[\ud800-\udfff]")


def exception_text(error: BaseException) -> str:
    """Return the text of an exception.

    If its `__str__`, which is untrusted code, raises, the result is a note about that.
    """
    try:
        return _SURROGATE.sub(
            "\ufffd", mask_message(str(error))
        )  # half of a surrogate pair can be neither written nor printed
    except BaseException as another:  # whatever it is, it is only about a text
        return f"[no text: {type(another).__name__}]"


def summarize_exception(error: BaseException, *, max_characters: int = 1000) -> str:
    """Format type and text of an exception on one line.

    Args:
        error: Exception; for a group, its root exception.
        max_characters: Maximum length, after which the text is truncated.

    >>> summarize_exception(KeyError("x")), summarize_exception(ExceptionGroup("both", [ValueError("odd")]))
    ("KeyError: 'x'", 'ValueError: odd')
    """
    error = root_exception(error)
    text = f"{type(error).__name__}: {exception_text(error)}"
    return text if len(text) <= max_characters else f"{text[: max_characters - 1]}…"


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Format the end of an error message about an unknown name.

    Returns:
        `; did you mean "…"?` for a near miss, otherwise the list of choices; empty without choices.

    >>> did_you_mean("group_relatve", ["group_relative"])
    '; did you mean "group_relative"?'
    """
    options = sorted(choices)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    if near:
        return f'; did you mean "{near[0]}"?'
    return f"; there are: {', '.join(options)}" if options else ""
