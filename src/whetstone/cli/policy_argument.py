"""Loading of the argument RUN_OR_MODEL: a run at its last checkpoint, or a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

import whetstone.assembly
import whetstone.record
from whetstone import training
from whetstone.errors import RecipeError
from whetstone.recipe import built_in_methods, built_in_recipes

if TYPE_CHECKING:
    from whetstone.assembly import RunComponents
    from whetstone.training.permission import Ask


member_option = click.option("--member", metavar="NAME", help="Model of a run with several models (`policies`).")


def is_run_or_checkpoint(path: Path) -> bool:
    """Return whether a path is a run directory, or a checkpoint in one."""
    return (path / "recipe.yaml").is_file() or whetstone.record.run_of_checkpoint(path) is not None


def resolve_checkpoint(run_or_model: str, checkpoint: str | None) -> str:
    """Return the folder of a checkpoint of a run.

    Args:
        run_or_model: Run directory or model.
        checkpoint: Name of the checkpoint, such as `step-50`; None: the argument is returned unchanged.

    Raises:
        WhetstoneError: If a checkpoint is given and the argument is not a run, or the run has no such checkpoint.
    """
    if checkpoint is None:
        return run_or_model
    if not (Path(run_or_model) / "recipe.yaml").is_file():
        raise RecipeError(f"--checkpoint: {run_or_model} is not a run directory; name one, or omit the option")
    return str(whetstone.record.find_checkpoint(Path(run_or_model), checkpoint))


def load_policy_argument(
    run_or_model: str,
    overrides: tuple[str, ...],
    recipe: str | None,
    *,
    member: str | None = None,
    ask: Ask | None = None,
) -> RunComponents:
    """Build the components of a run, or of a recipe with a model.

    Args:
        run_or_model: Argument of the command.
        overrides: Overrides of recipe keys.
        recipe: Recipe with the tools for a model; None: no tools.
        member: Member of `policies` to load; required for a run with several members.
        ask: Function that asks for permission to call tools with side effects; None: such tools are not called.

    Raises:
        RecipeError: If the argument is neither a run nor a model, or `recipe` is set for a run.
    """
    run = Path(run_or_model)
    if is_run_or_checkpoint(run):
        if recipe is not None:
            raise RecipeError("--recipe: has no effect for a run, which has its own recipe; omit the option")
        training.require_member(run, member)
        agent = training.load_agent(run_or_model, overrides, member=member)
    elif member is not None:
        raise RecipeError(f"--member: {run_or_model} is not a run directory; name one, or omit the option")
    elif run_or_model in (*built_in_recipes(), *built_in_methods()) or run.suffix in (".yaml", ".yml"):
        raise RecipeError(f"{run_or_model}: is a recipe; name a run of it, or a model with --recipe {run_or_model}")
    else:
        bare = {
            "tasks": {"source": "arithmetic"},
            "reward": "exact_number",
            "policy": {"tiny": {}},
            "reinforcement": {},
        }
        agent = training.load_agent(recipe if recipe is not None else bare, overrides, run_or_model)
    resolved = agent.resolved
    if ask is not None:
        one_episode = [(resolved, lambda _: 1)]
        resolved = training.permit_run(resolved, one_episode, ask=ask, log=lambda line: click.echo(line, err=True))
    return whetstone.assembly.assemble(
        resolved, agent.policy, agent.memory, say=lambda line: click.echo(line, err=True)
    )
