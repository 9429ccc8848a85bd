"""The `whetstone` command: one subcommand a file, one line and exit code 2 for what a person can put right."""

from __future__ import annotations

import os
import sys

# its remarks on every model it opens; must be set before a subcommand imports it
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import click

from whetstone.cli.compare import compare_command
from whetstone.cli.doctor import doctor
from whetstone.cli.evaluate import evaluate
from whetstone.cli.host import host
from whetstone.cli.mcp import mcp
from whetstone.cli.recipes import recipes
from whetstone.cli.replay import replay
from whetstone.cli.rewards import rewards
from whetstone.cli.rollout import rollout
from whetstone.cli.tasks import tasks
from whetstone.cli.train import train
from whetstone.cli.why import why
from whetstone.errors import WhetstoneError
from whetstone.extras import release


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(release(), prog_name="whetstone")
def cli() -> None:
    """Train language-model agents that use tools, by reinforcement learning."""


for command in (train, evaluate, compare_command, rollout, replay, why, recipes, rewards, tasks, host, mcp, doctor):
    cli.add_command(command)


def main() -> None:
    """Run the command; a mistake of the user's is one line and exit code 2."""
    try:
        cli(standalone_mode=False)
    except WhetstoneError as error:
        print(f"whetstone: {error}", file=sys.stderr)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        print("whetstone: stopped; the same command with --resume goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # `whetstone rollout demo | head`
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
