"""The `whetstone` command: one subcommand a file, one line and exit code 2 for what a person can put right."""

from __future__ import annotations

import os
import select
import sys
from typing import Any

# its remarks on every model it opens; must be set before a subcommand imports it
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import click

from whetstone.cli.compare import compare_command
from whetstone.cli.doctor import doctor
from whetstone.cli.evaluate import evaluate
from whetstone.cli.host import host
from whetstone.cli.mcp import mcp
from whetstone.cli.own_code import line_of
from whetstone.cli.recipes import recipes
from whetstone.cli.replay import replay
from whetstone.cli.rewards import rewards
from whetstone.cli.rollout import rollout
from whetstone.cli.tasks import tasks
from whetstone.cli.train import train
from whetstone.cli.why import why
from whetstone.errors import WhetstoneError
from whetstone.extras import release
from whetstone.training import Interrupted


class _ReaderLeft(Exception):
    """`whetstone rollout demo | head`: nobody reads what is printed."""


class _Broken(Exception):
    """Somebody else's pipe broke."""

    def __init__(self, error: BrokenPipeError) -> None:
        super().__init__(str(error))
        self.error = error


class _Commands(click.Group):
    """A group that lets a broken pipe through, which click would end without a word whoever's pipe it was."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            if _reader_left():
                raise _ReaderLeft from None
            raise _Broken(error) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(release(), prog_name="whetstone")
@click.option("--traceback", is_flag=True, help="Show where an error came from, all of it.")
@click.pass_context
def cli(ctx: click.Context, traceback: bool) -> None:
    """Train language-model agents that use tools, by reinforcement learning."""
    ctx.ensure_object(dict)["traceback"] = traceback


for command in (train, evaluate, compare_command, rollout, replay, why, recipes, rewards, tasks, host, mcp, doctor):
    cli.add_command(command)


def main() -> None:
    """Run the command; a mistake of the user's, or in his own code, is one line and exit code 2."""
    options = {"traceback": False}
    try:
        cli(standalone_mode=False, obj=options)
    except click.ClickException as refused:
        refused.show()
        sys.exit(2)
    except Interrupted as stop:
        print(f"whetstone: {stop}", file=sys.stderr)
        sys.exit(128 + stop.signal)
    except (KeyboardInterrupt, click.Abort):
        print("whetstone: stopped", file=sys.stderr)
        sys.exit(130)
    except _ReaderLeft:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be flushed goes nowhere
        sys.exit(0)
    except Exception as raised:
        error = raised.error if isinstance(raised, _Broken) else raised
        line = str(error) if isinstance(error, WhetstoneError) else line_of(error)
        if line is None or options["traceback"]:
            raise
        more = "" if isinstance(error, WhetstoneError) else "; `whetstone --traceback …` shows all of it"
        print(f"whetstone: {line}{more}", file=sys.stderr)
        sys.exit(2)


def _reader_left() -> bool:
    """Whether nobody reads standard output or standard error any more."""
    looked = select.poll()
    for stream in (sys.stdout, sys.stderr):
        try:
            looked.register(stream.fileno(), 0)
        except (OSError, ValueError):  # it is no file, or closed
            continue
    return any(event & select.POLLERR for _, event in looked.poll(0))


if __name__ == "__main__":
    main()
