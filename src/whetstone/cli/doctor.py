"""`whetstone doctor`: what this machine offers, and whether a recipe would run on it."""

from __future__ import annotations

import asyncio
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from whetstone import assembly, environments, inference, policies, training
from whetstone.cli import completing
from whetstone.cli.check_output import show
from whetstone.cli.effects import allow_effects_option, call_tools_option, check_policy
from whetstone.cli.notes import say_notes
from whetstone.compute_thread import is_computing
from whetstone.contracts import fulfils
from whetstone.environments.protocol import Needs
from whetstone.errors import RecipeError, WhetstoneError
from whetstone.evaluation.checks import Check, CheckStatus
from whetstone.extras import install_command
from whetstone.plain_json import to_json
from whetstone.recipe import Resolved, load_recipe
from whetstone.sandbox import Isolation, does_not_hold, find_bwrap, offers
from whetstone.sandbox.cgroups import parents

if TYPE_CHECKING:
    import torch


@click.command()
@click.argument("recipe", required=False, shell_complete=completing.recipes)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=completing.overrides)
@call_tools_option
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(
    recipe: str | None, overrides: tuple[str, ...], call_tools: bool, allow_effects: bool, as_json: bool
) -> None:
    """Look at this machine: processors, packages, programs, disk; and say what is missing for what.

    With RECIPE, try each of its parts once, small, before anything long begins: the template, tools, reward, a few
    episodes, whether sampler and learner agree, the largest step. Exits with 1 where something would go wrong.

    Tools are called for real only if they declare that they read. `--call-tools` calls those that declare nothing,
    `--allow-effects` those that change something.

    With `engine=… policy.path=MODEL` and no recipe, try that engine alone: its log-probs, its tokenizer, its prefix
    cache, and whether weights reach it.
    """
    if recipe is not None and recipe.startswith(_OF_ENGINES):
        alone = _engine_alone((recipe, *overrides))
        tried = _try(assembly.engine_preflight(alone), "the engine is as a run needs it", as_json)
        sys.exit(0 if asyncio.run(tried) else 1)
    if recipe is not None:
        resolved = load_recipe(recipe, overrides)
        say_notes(resolved)
        try:
            effects = training.tool_effects(resolved)
        except WhetstoneError:
            effects = {}  # a check reports the error
        needed = ["--allow-effects"] if assembly.run_policy(resolved).refused(effects) else []
        command = shlex.join(["whetstone", "train", recipe, *overrides, *needed])
        calls = check_policy(effects, allow_effects=allow_effects, call_tools=call_tools)
        checks = assembly.preflight(resolved, calls=calls, effects=effects)
        sys.exit(0 if asyncio.run(_try(checks, f"ready: {command}", as_json)) else 1)
    found = examine()
    if as_json:
        click.echo(to_json(found))
        return
    for area, facts in found.items():
        click.secho(area, bold=True)
        for name, fact in facts.items():
            click.echo(f"  {name:<16} {fact}")


_OF_ENGINES = ("engine=", "engine.", "policy.")
"""What changes begin with that say which engine is to be tried, and with which model."""


def _engine_alone(changes: tuple[str, ...]) -> Resolved:
    """A recipe of which the engine alone is tried: the demo, with a model of the caller's."""
    named = {change.split("=", 1)[0] for change in changes}
    if not any(name.split(".")[0] == "engine" for name in named) or "policy.path" not in named:
        raise RecipeError(
            "an engine is tried with a model: whetstone doctor engine=… policy.path=MODEL; "
            "of a recipe: whetstone doctor RECIPE engine=…"
        )
    return load_recipe("demo", ["policy.tiny=null", "ablations=null", *changes])


async def _try(tried: AsyncIterator[Check], good: str, as_json: bool) -> bool:
    """Whether nothing is bad.

    Args:
        good: What is said then.
    """
    checks = []
    async for check in tried:
        checks.append(check)
        if not as_json:
            show(check)
    bad = [check.name for check in checks if check.verdict is CheckStatus.FAIL]
    unfinished = [check.name for check in checks if not check.is_finished]
    undecided = [check for check in checks if not check.is_decided]
    if as_json:
        ready = None if (unfinished or undecided) and not bad else not bad
        click.echo(to_json({"ready": ready, "unfinished": unfinished, "checks": [asdict(check) for check in checks]}))
    elif bad:
        click.echo(f"not ready: {', '.join(bad)}")
    elif undecided:
        click.echo(f"undecided: {'; '.join(check.said for check in undecided)}")
    else:
        click.echo(f"undecided, not finished before the deadline: {', '.join(unfinished)}" if unfinished else good)
    if is_computing():  # after a deadline; the interpreter would wait for the arithmetic
        sys.stdout.flush()
        os._exit(1 if bad else 0)
    return not bad


def examine() -> dict[str, dict[str, Any]]:
    """Return facts by area."""
    less, is_invariant = inference.lacking(), inference.matmul_is_batch_invariant()
    return {
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(terse=True),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gib": _memory_gib(),
            "disk_free_gib": round(shutil.disk_usage(Path.cwd()).free / 2**30, 1),
        },
        "accelerator": {
            "devices": ", ".join(map(policies.described, policies.available_devices())),
            "auto": f"{policies.find_device('auto')} (policy.device: auto)",
            "free_gib": {str(device): _free_gib(device) for device in policies.available_devices()},
            "torch_threads": policies.num_threads(),
            "fast_precision": policies.describe_fast_dtype(policies.find_device("auto")),
            "bfloat16": f"sampled by PyTorch's own operations: {less}" if less else "sampled by compiled functions",
            "repeatable": "bit for bit for any batch size" if is_invariant else "up to rounding",
        },
        "packages": {name: _package(name) for name in ("torch", "transformers", "tokenizers", "numpy")},
        "sandbox": _examine_sandbox(),
        "environments": {
            name: "; ".join(f"needs {n.kind} {n.name}: {n.command}" for n in part.needs if not n.met) or "yes"
            for name, part in sorted(environments.ENVIRONMENTS.items())
            if fulfils(part, Needs) and part.needs
        },
        "optional": {
            "search": _package("tantivy", f"searching a folder: {install_command('search')}"),
            "sql": _package("duckdb", f"DuckDB and PostgreSQL: {install_command('sql')}"),
            "math": _package("math_verify", f"mathematics as answers: {install_command('math')}"),
            "mcp": _package("mcp", f"MCP servers as tools: {install_command('mcp')}"),
            "ray": _package("ray", f"workers and replicas elsewhere (scale): {install_command('ray')}"),
            "chromium": _program("chromium", "browser environments: apt-get install chromium chromium-driver"),
        },
    }


def _examine_sandbox() -> dict[str, str]:
    """Return the isolation layers, the one that `sandbox: auto` chooses, and the remedy if it is not the strongest."""
    layers = {offer.isolation: offer for offer in offers()}
    strongest = layers[Isolation.NAMESPACES]
    available = [name for name, offer in layers.items() if not offer.missing and name is not Isolation.UNSAFE]
    chosen = available[0] if available else None
    facts = {name.value: offer.missing or "yes" for name, offer in layers.items()}
    if not strongest.missing:
        facts["bwrap"] = find_bwrap()
    facts["chosen"] = chosen.value if chosen is not None else "none: untrusted code is refused"
    if chosen is not None:
        facts["does_not_hold"] = does_not_hold(chosen) or "nothing"
    if strongest.missing:
        facts["remedy"] = strongest.remedy
    facts["control_groups"] = "yes" if parents() else "not writable: memory is limited for each process by itself"
    return facts


def _free_gib(device: torch.device) -> float | str:
    free = policies.free_memory(device)
    return round(free / 2**30, 1) if free is not None else "unknown"


def _memory_gib() -> float | str:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return "unknown"


def _package(name: str, otherwise: str = "missing") -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return f"not installed ({otherwise})" if otherwise != "missing" else otherwise


def _program(name: str, otherwise: str) -> str:
    path = shutil.which(name)
    if path is None:
        return f"not installed ({otherwise})"
    try:
        asked = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return path
    return next(iter((asked.stdout or asked.stderr).splitlines()), path)
