"""Entry point of the `whetstone` command: imports subcommands lazily, and prints errors.

An error of the user, or in the user's code, is one line and exit code 2.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib
import os
import select
import sys
import tomllib
import traceback as traceback_module
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.resources import files
from types import TracebackType
from typing import Any

# its remarks on every model it opens; must be set before a subcommand imports it
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import click
from click.shell_completion import CompletionItem

from whetstone.errors import WhetstoneError, did_you_mean
from whetstone.masking import mask_message
from whetstone.optional_dependencies import get_package_version
from whetstone.training.interruption import Interrupted
from whetstone.user_code import describe_mistake

_TABLES = tomllib.loads((files("whetstone.cli") / "commands.toml").read_text("utf-8"))
COMMANDS: Mapping[str, Sequence[str]] = _TABLES["commands"]
"""Module and function of each command, and its line in the list of commands. A command is imported when it is called,
because most commands import packages that take seconds."""
RENAMED: Mapping[str, str] = _TABLES["renamed"]
"""Old name → new name of commands and options of an earlier release."""


EXAMPLES: Mapping[str, Sequence[str]] = tomllib.loads((files("whetstone.cli") / "examples.toml").read_text("utf-8"))
"""Example lines of each command, from `examples.toml`."""


def with_examples(command: click.Command, name: str) -> click.Command:
    """Add the examples of a command and its subcommands to their help.

    Args:
        command: The command.
        name: Name of the command on the command line after `whetstone`.
    """
    lines = EXAMPLES.get(name)
    if lines is not None:
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
    if isinstance(command, click.Group):
        for below, other in command.commands.items():
            with_examples(other, f"{name} {below}")
    return command


class _LoadingNotice(MetaPathFinder):
    """Import finder that prints a line before PyTorch is imported, which takes seconds."""

    was_printed = False

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Print the line if PyTorch is imported; another finder finds the module."""
        if fullname == "torch" and not self.was_printed:
            self.was_printed = True  # the finder stays: the import system iterates over the list
            with contextlib.suppress(OSError, ValueError, AttributeError):  # standard error is full or closed
                print("whetstone: loading PyTorch", file=sys.stderr, flush=True)


class _ReaderLeft(Exception):
    """The reader of standard output closed its pipe, as in `whetstone rollout demo | head`."""


class _Broken(Exception):
    """A pipe other than standard output or standard error broke.

    Args:
        error: Error of the pipe.
    """

    def __init__(self, error: BrokenPipeError) -> None:
        super().__init__(str(error))
        self.error = error


class _Commands(click.Group):
    """Group of commands that are imported when they are called.

    A BrokenPipeError of another pipe is raised in a wrapper, because click would exit without a message.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Import a command, and return it with its examples."""
        if cmd_name in RENAMED:
            ctx.fail(f"{cmd_name}: renamed to {RENAMED[cmd_name]}")
        if cmd_name not in COMMANDS:
            ctx.fail(f'no command "{cmd_name}"{did_you_mean(cmd_name, COMMANDS)}')
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        return with_examples(getattr(importlib.import_module(f"whetstone.cli.{module}"), name), cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands into the help without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, description) for name, (_, description) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands and options without importing a command."""
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(n, help=description) for n, (_, description) in COMMANDS.items() if n.startswith(incomplete)
        ] + options

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand, and distinguish the causes of a broken pipe."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            if _reader_left():
                raise _ReaderLeft from None
            raise _Broken(error) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(get_package_version(), prog_name="whetstone")
@click.option("--traceback", is_flag=True, help="Show the full traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, traceback: bool) -> None:
    """Train language-model agents that use tools, by reinforcement learning."""
    ctx.ensure_object(dict)["traceback"] = traceback
    if "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        ctx.color = False


def main() -> None:
    """Run the command line, and exit with its code.

    An error of the user, or in the user's code, is printed as one line, and the exit code is 2. A bug of Whetstone
    prints its traceback. A signal exits with 128 plus its number.
    """
    options = {"traceback": False}
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _LoadingNotice())
    atexit.register(gc.freeze)  # or the interpreter searches all objects for garbage before it exits: 1 s with PyTorch
    try:
        cli(standalone_mode=False, obj=options)
    except click.ClickException as refused:
        old = _find_renamed(refused)
        remedy = f"{old}: renamed to {RENAMED[old]}" if old is not None else _suggest_override(refused)
        if remedy:
            _complain(remedy)
        else:
            refused.show()
        sys.exit(2)
    except Interrupted as stop:
        _complain(str(stop))
        sys.exit(128 + stop.signal)
    except (KeyboardInterrupt, click.Abort):
        _complain("stopped")
        sys.exit(130)
    except _ReaderLeft:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards output that is not flushed yet
        sys.exit(0)
    except Exception as raised:
        error = raised.error if isinstance(raised, _Broken) else raised
        outside = _lost_output(error) or _no_memory(error)
        if _no_memory(error) is not None and not options["traceback"]:
            _complain(str(outside))
            _release_output()
            os._exit(2)  # functions that libraries run at exit would fail too, each with a traceback
        line = str(error) if isinstance(error, WhetstoneError) else outside or describe_mistake(error)
        if line is None or options["traceback"]:
            sys.excepthook = _print_masked
            raise
        own_code = not isinstance(error, WhetstoneError) and outside is None
        _complain(f"{line}; `whetstone --traceback …` shows the traceback" if own_code else line)
        sys.exit(2)
    finally:
        _release_output()


def _print_masked(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print a traceback in which the secrets of the recipe are masked."""
    text = "".join(traceback_module.format_exception(kind, error, traceback))
    with contextlib.suppress(OSError, ValueError):
        print(mask_message(text), end="", file=sys.stderr, flush=True)


def _complain(line: str) -> None:
    """Print an error line on standard error; a failure to write is ignored."""
    with contextlib.suppress(OSError, ValueError):
        print(f"whetstone: {mask_message(line)}", file=sys.stderr, flush=True)


_LOST = {errno.ENOSPC, errno.EIO, errno.EPIPE, errno.EDQUOT}


def _lost_output(error: Exception) -> str | None:
    """Return an error line if the output cannot be written, such as to a full disk.

    None for any other error.
    """
    if not isinstance(error, OSError) or error.filename is not None or error.errno not in _LOST:
        return None
    return f"the output cannot be written: {error.strerror}" if _place_is_output(error) else None


def _place_is_output(error: Exception) -> bool:
    """Return whether an error was raised while click, rich or a command wrote output."""
    last = traceback_module.extract_tb(error.__traceback__)[-1].filename
    return f"{os.sep}click{os.sep}" in last or f"{os.sep}rich{os.sep}" in last or os.path.dirname(__file__) in last


_NO_MEMORY = ("can't allocate memory", "not enough memory", "failed to map segment", "cannot allocate memory")


def _no_memory(error: Exception) -> str | None:
    """Return an error line if memory could not be allocated; None for any other error."""
    text = str(error).partition("\n")[0]
    if isinstance(error, WhetstoneError):
        return None
    if not isinstance(error, MemoryError) and not any(reason in text.lower() for reason in _NO_MEMORY):
        return None
    return (
        f"out of memory ({text or type(error).__name__}); close other programs, raise the limit (ulimit -v), or lower "
        "rollout.max_in_flight and micro_batch_tokens; a run resumes from its last checkpoint"
    )


def _release_output() -> None:
    """Redirect output streams that cannot be written, so that the exit prints no error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except (ValueError, AttributeError):  # closed, or none
            continue


def _find_renamed(refused: click.ClickException) -> str | None:
    """Return the old name of a renamed option or command that caused a usage error, or None."""
    if isinstance(refused, click.NoSuchOption):
        called = refused.option_name
    elif isinstance(refused, click.UsageError) and refused.ctx is not None and refused.ctx.info_name is not None:
        arguments = sys.argv[1:]
        place = arguments.index(refused.ctx.info_name) if refused.ctx.info_name in arguments else len(arguments)
        called = " ".join(arguments[place : place + 2])
    else:
        return None
    return called if called in RENAMED else None


def _suggest_override(refused: click.ClickException) -> str:
    """Return the message about an unknown option that is a key of a recipe; empty for other usage errors."""
    if not isinstance(refused, click.NoSuchOption) or refused.ctx is None:
        return ""
    named = {parameter.name: parameter.metavar or "" for parameter in refused.ctx.command.params}
    if not any("KEY=VALUE" in metavar and name != "options" for name, metavar in named.items()):
        return ""
    # the command is imported, and the module with it
    messages = importlib.import_module("whetstone.cli.unused_overrides")
    return str(messages.suggest_override(refused.option_name, sys.argv[1:]))


def _reader_left() -> bool:
    """Return whether the reader of standard output or standard error closed its pipe."""
    looked = select.poll()
    for stream in (sys.stdout, sys.stderr):
        try:
            looked.register(stream.fileno(), 0)
        except (OSError, ValueError):  # it is no file, or closed
            continue
    return any(event & select.POLLERR for _, event in looked.poll(0))


if __name__ == "__main__":
    main()
