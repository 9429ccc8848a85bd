"""`whetstone doctor`: check this machine, and whether a recipe would run on it."""

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
from whetstone.capabilities import implements_protocol
from whetstone.cli import shell_completion
from whetstone.cli.check_output import print_check
from whetstone.cli.deprecation_notices import print_notices
from whetstone.cli.effects import allow_effects_option, call_tools_option, check_policy
from whetstone.compute_thread import is_computing
from whetstone.environments.protocol import HasRequirements
from whetstone.errors import RecipeError, WhetstoneError
from whetstone.evaluation.check_result import Check, CheckStatus
from whetstone.optional_dependencies import install_command
from whetstone.recipe import Resolved, load_recipe
from whetstone.sandbox import Isolation, find_bwrap, list_isolation_layers, missing_guarantees
from whetstone.sandbox.cgroups import list_parent_groups
from whetstone.sandbox.containers.container_runtime import PROGRAMS, describe_runtime
from whetstone.strict_json import to_json

if TYPE_CHECKING:
    import torch


@click.command("doctor")
@click.argument("recipe", required=False, shell_complete=shell_completion.complete_recipes)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=shell_completion.complete_overrides)
@call_tools_option
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor_command(
    recipe: str | None, overrides: tuple[str, ...], call_tools: bool, allow_effects: bool, as_json: bool
) -> None:
    """Report processors, packages, programs and disk of this machine, and missing requirements.

    With RECIPE, run a small check of each component before a long run: the chat template, tools, reward, a few
    episodes, the log-prob mismatch of sampler and learner, the largest step. The exit code is 1 if a check fails.

    Tools are called for real only if they declare the effect `read`. `--call-tools` also calls tools without a declared
    effect, `--allow-effects` those with side effects.

    With `engine=… policy.path=MODEL` and no recipe, check only that engine: its log-probs, its tokenizer, its prefix
    cache, and weight sync.
    """
    if recipe is not None and recipe.startswith(_OF_ENGINES):
        alone = _engine_alone((recipe, *overrides))
        tried = _try(assembly.run_engine_checks(alone), "the engine meets the requirements of a run", as_json)
        sys.exit(0 if asyncio.run(tried) else 1)
    if recipe is not None:
        resolved = load_recipe(recipe, overrides)
        print_notices(resolved)
        try:
            effects = training.tool_effects(resolved)
        except WhetstoneError:
            effects = {}  # a check reports the error
        needed = ["--allow-effects"] if assembly.run_policy(resolved).refused(effects) else []
        command = shlex.join(["whetstone", "train", recipe, *overrides, *needed])
        calls = check_policy(effects, allow_effects=allow_effects, call_tools=call_tools)
        checks = assembly.run_preflight_checks(resolved, calls=calls, effects=effects)
        sys.exit(0 if asyncio.run(_try(checks, f"ready: {command}", as_json)) else 1)
    report = collect_facts()
    if as_json:
        click.echo(to_json(report))
        return
    for area, facts in report.items():
        click.secho(area, bold=True)
        for name, fact in facts.items():
            click.echo(f"  {name:<16} {fact}")


_OF_ENGINES = ("engine=", "engine.", "policy.")
"""Prefixes of overrides that select an engine and its model."""


def _engine_alone(changes: tuple[str, ...]) -> Resolved:
    """Build a recipe that checks only an engine: the demo with the user's model."""
    named = {change.split("=", 1)[0] for change in changes}
    if not any(name.split(".")[0] == "engine" for name in named) or "policy.path" not in named:
        raise RecipeError(
            "an engine check requires a model: whetstone doctor engine=… policy.path=MODEL; "
            "with a recipe: whetstone doctor RECIPE engine=…"
        )
    return load_recipe("demo", ["policy.tiny=null", "ablations=null", *changes])


async def _try(tried: AsyncIterator[Check], good: str, as_json: bool) -> bool:
    """Run and print checks.

    Args:
        tried: Results of the checks, as they finish.
        good: Last line to print if no check fails.
        as_json: Whether one JSON object is printed at the end.

    Returns:
        True if no check fails.
    """
    checks = []
    async for check in tried:
        checks.append(check)
        if not as_json:
            print_check(check)
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


def collect_facts() -> dict[str, dict[str, Any]]:
    """Collect facts about this machine.

    Returns:
        Area (processors, packages, programs, disk, …) → name → value.
    """
    is_invariant = inference.matmul_is_batch_invariant()
    cpu = policies.find_device("cpu")
    precision = {"small_models": policies.in_dtype(0, "auto", cpu), "larger_models": policies.fast_dtype(cpu)}
    return {
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(terse=True),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gib": _memory_gib(),
            "disk_free_gib": round(shutil.disk_usage(Path.cwd()).free / 2**30, 1),
        },
        "accelerator": {
            "devices": ", ".join(map(policies.describe_device, policies.available_devices())),
            "auto": f"{policies.find_device('auto')} (policy.device: auto)",
            "free_gib": {str(device): _free_gib(device) for device in policies.available_devices()},
            "torch_threads": policies.num_threads(),
            "fast_precision": policies.describe_fast_dtype(policies.find_device("auto")),
            **{size: _describe_sampling(dtype) for size, dtype in precision.items()},
            "repeatable": "bit for bit for any batch size" if is_invariant else "up to rounding",
        },
        "packages": {name: _package(name) for name in ("torch", "transformers", "tokenizers", "numpy")},
        "sandbox": _examine_sandbox(),
        "containers": {program: describe_runtime(program) for program in PROGRAMS},
        "environments": {
            name: "; ".join(f"needs {n.kind} {n.name}: {n.command}" for n in part.needs if not n.is_installed) or "yes"
            for name, part in sorted(environments.ENVIRONMENTS.items())
            if implements_protocol(part, HasRequirements) and part.needs
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


def _describe_sampling(dtype: torch.dtype) -> str:
    """Return whether compiled functions sample Llama-like models of a data type on a CPU, and if not, why."""
    missing = inference.missing_for(dtype)
    return f"sampled by PyTorch's operations: {missing}" if missing else "sampled by compiled functions"


def _examine_sandbox() -> dict[str, str]:
    """Return the isolation layers of this machine, and the choice of `sandbox: auto`.

    If the choice is not the strongest isolation, there is a remedy.
    """
    layers = {offer.isolation: offer for offer in list_isolation_layers()}
    strongest = layers[Isolation.NAMESPACES]
    available = [name for name, offer in layers.items() if not offer.missing and name is not Isolation.UNSAFE]
    chosen = available[0] if available else None
    facts = {name.value: offer.missing or "yes" for name, offer in layers.items()}
    if not strongest.missing:
        facts["bwrap"] = find_bwrap()
    facts["chosen"] = chosen.value if chosen is not None else "none: untrusted code is refused"
    if chosen is not None:
        facts["does_not_hold"] = missing_guarantees(chosen) or "nothing"
    if strongest.missing:
        facts["remedy"] = strongest.remedy
    facts["control_groups"] = (
        "yes" if list_parent_groups() else "not writable: memory is limited for each process by itself"
    )
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
        process = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return path
    return next(iter((process.stdout or process.stderr).splitlines()), path)
