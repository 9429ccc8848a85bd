"""Export of a run or a comparison for the appendix of a paper: recipe, seeds, versions, curves and intervals.

appendix.md        tasks, policy, method, versions, machine, and a table of results
results.tex        the same table for LaTeX
evaluations.csv    one line per evaluation: success with its 95 % interval, episodes, tool calls
curves.csv         one line per step: every metric
pairs.csv          of a comparison: difference of two contenders, interval, p-values
recipes/, environments/    one file per contender and per run; a recipe that changed in a run also as it was before
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whetstone.analysis.component_options import list_component_options
from whetstone.analysis.run_text import RunText
from whetstone.atomic_write import new_folder
from whetstone.errors import RunDirectoryError
from whetstone.masking import mask_message
from whetstone.recipe.variables import mask_recipe_text
from whetstone.record import read_json
from whetstone.record.run_directory import ENVIRONMENT, read_changes, run_eras
from whetstone.strict_json import to_json

COMPARISON = "comparison.json"
"""File of the folder that `whetstone compare` writes."""
_MAX_OPTION_CHARACTERS = 60
_EVALUATED = ("success", "low", "high", "episodes", "invalid", "reward", "turns", "tool_calls", "action_tokens")


@dataclass(frozen=True, slots=True)
class _Run:
    contender: str
    seed: int
    record: RunText

    @property
    def name(self) -> str:
        """Return the name of the files of the run, from contender and seed."""
        return f"{re.sub(r'[^A-Za-z0-9.=_-]+', '-', self.contender)}-seed-{self.seed}"


def write_appendix(source: Path, output: Path) -> list[Path]:
    """Write the files of an appendix into a new folder; returns their paths.

    Args:
        source: A run directory, or the output directory of `whetstone compare`.
        output: The folder; must not exist.

    Raises:
        RunDirectoryError: The source is neither, or a run has no end.
        SaveError: The folder exists or cannot be written.
    """
    compared = read_json(source / COMPARISON) if not (source / "recipe.yaml").is_file() else None
    runs = _compared_runs(source, compared) if compared is not None else [_single_run(source)]
    with new_folder(output) as folder:
        for run in runs:
            _write(folder / "environments" / f"{run.name}.json", to_json(_environment(run.record), indent=1) + "\n")
        for contender in dict.fromkeys(run.contender for run in runs):
            run = next(run for run in runs if run.contender == contender)
            text = (run.record.run_dir / "recipe.yaml").read_text(encoding="utf-8")
            name = run.name.rpartition("-seed-")[0]
            _write(folder / "recipes" / f"{name}.yaml", mask_recipe_text(text))
            for era in run_eras(run.record.run_dir)[:-1]:
                assert era.end is not None  # only the last recipe is the current one
                file = folder / "recipes" / f"{name}-until-{era.end.stage}-step-{era.end.step}.yaml"
                if not file.exists():  # a recipe that was changed again before its first step made nothing
                    _write(file, mask_recipe_text(era.resolved.dump()))
        _write(folder / "evaluations.csv", _table(map(_with_run, _evaluations(runs))))
        _write(folder / "curves.csv", _table(_steps(runs)))
        if compared is not None:
            _write(folder / "pairs.csv", _table(_pairs(compared)))
        _write(folder / "results.tex", _latex(runs))
        _write(folder / "appendix.md", _page(runs, compared))
    return sorted(path for path in output.rglob("*") if path.is_file())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")


def _single_run(source: Path) -> _Run:
    if not (source / "recipe.yaml").is_file():
        raise RunDirectoryError(f"{source}: neither a run directory (recipe.yaml) nor a comparison ({COMPARISON})")
    record = RunText(source)
    if record.summary is None:
        raise RunDirectoryError(f"{source}: the run is not finished; write the appendix after its end")
    return _Run(str(record.summary["recipe"]), int(record.summary["seed"]), record)


def _compared_runs(source: Path, compared: Mapping[str, Any]) -> list[_Run]:
    runs = []
    for row in compared["contenders"]:
        for path in row["folders"]:
            folder = source / "runs" / Path(path).name  # also if the comparison was moved
            record = RunText(folder if folder.is_dir() else Path(path))
            if record.summary is not None:
                runs.append(_Run(row["name"], int(record.summary["seed"]), record))
    if not runs:
        raise RunDirectoryError(f"{source}: none of the compared runs exists here; copy their folders to this machine")
    return runs


def _environment(record: RunText) -> dict[str, Any]:
    """Return versions, machine and code of a run from `environment.json`, without paths of the machine."""
    stored = read_json(record.run_dir / ENVIRONMENT) or {}
    git = stored.get("git")
    modules = {Path(path).name: each["sha256"] for path, each in stored.get("modules", {}).items()}
    facts = {key: value for key, value in stored.items() if key != "events"}
    commit = {key: value for key, value in git.items() if key != "folder"} if git else None
    return {**facts, "git": commit, "modules": modules}


def _evaluations(runs: Iterable[_Run]) -> Iterable[tuple[_Run, str, dict[str, Any]]]:
    """Yield (run, name, result) of each evaluation."""
    for run in runs:
        for name, result in run.record.evaluations:
            low, high = result["interval"]
            yield run, name, {**{key: result.get(key) for key in _EVALUATED}, "low": low, "high": high}


def _with_run(evaluation: tuple[_Run, str, dict[str, Any]]) -> dict[str, Any]:
    run, name, result = evaluation
    return {"contender": run.contender, "seed": run.seed, "evaluation": name, **result}


def _steps(runs: Iterable[_Run]) -> Iterable[dict[str, Any]]:
    for run in runs:
        for row in run.record.rows:
            yield {"contender": run.contender, "seed": run.seed, "stage": row["stage"], "step": row["step"], **row}


def _pairs(compared: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for pair in compared["pairs"]:
        low, high = pair["interval"]
        yield {**{key: value for key, value in pair.items() if key != "interval"}, "low": low, "high": high}


def _table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV; a column that a row lacks is empty."""
    listed = list(rows)
    columns = list(dict.fromkeys(column for row in listed for column in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    return text.getvalue()


def _results(runs: Sequence[_Run]) -> list[tuple[str, str, str, str, str]]:
    """Return (contender, seed, evaluation, success with interval, episodes) of each evaluation."""
    return [
        (run.contender, str(run.seed), name, _percent(result), str(result["episodes"]))
        for run, name, result in _evaluations(runs)
    ]


def _percent(result: Mapping[str, Any]) -> str:
    if result["success"] is None:
        return "unknown"
    return f"{100 * result['success']:.1f} ({100 * result['low']:.1f}–{100 * result['high']:.1f})"


_HEADS = ("contender", "seed", "evaluation", "success in % (95 % interval)", "episodes")


def _latex(runs: Sequence[_Run]) -> str:
    def row(cells: Iterable[str]) -> str:
        escaped = (re.sub(r"([&%#_$])", r"\\\1", cell).replace("–", "--") for cell in cells)
        return f"{' & '.join(escaped)} \\\\"

    lines = [r"\begin{tabular}{lrlrr}", r"\hline", row(_HEADS), r"\hline", *map(row, _results(runs)), r"\hline"]
    return "\n".join([*lines, r"\end{tabular}", ""])


def _page(runs: Sequence[_Run], compared: Mapping[str, Any] | None) -> str:
    first = runs[0].record
    recipe, summary = first.recipe.recipe, first.summary or {}
    environment = _environment(first)
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(run.seed for run in runs))
    minutes = sum(sum((run.record.summary or {}).get("seconds", {}).values()) for run in runs) / 60
    processor = environment.get("processor", {})
    facts = {
        "tasks": f"{recipe.tasks.source}, {_held_out_tasks(runs, recipe.evaluation.samples)} held out",
        "environment": recipe.environment.name,
        "policy": f"{summary.get('policy', '')}, {summary.get('parameters', 0):,} parameters",
        "method": ", ".join(f"{key} {value}" for key, value in summary.get("method", {}).items() if value),
        "seeds": seeds,
        "training": f"{minutes:.1f} minutes, {len(runs)} {'run' if len(runs) == 1 else 'runs'}",
        "budget": ", ".join(f"{most:g} {unit}" for unit, most in (compared or {}).get("budget", {}).items()),
        "whetstone": environment.get("whetstone"),
        "python": environment.get("python"),
        "packages": ", ".join(f"{name} {version}" for name, version in environment.get("packages", {}).items()),
        "processor": f"{processor.get('name', '')}, {environment.get('threads')} threads" if processor else None,
        "device": environment.get("device"),
        "commit": _commit(environment["git"]) if "whetstone" in environment else None,
    }
    lines = ["# Experiment details", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in facts.items() if value]
    lines += _change_lines(runs)
    lines += ["", "## Components", "", "| key | component | options |", "| --- | --- | --- |"]
    lines += [
        _line((key, name, ", ".join(f"{option}: {_short(value)}" for option, value in options.items())))
        for key, name, options in list_component_options(recipe)
    ]
    lines += ["", "## Results", "", _line(_HEADS), _line("---" for _ in _HEADS), *map(_line, _results(runs))]
    for pair in compared["pairs"] if compared is not None else ():
        low, high = (f"{100 * end:+.1f}" if end is not None and end == end else "unknown" for end in pair["interval"])
        difference = f"{100 * pair['difference']:+.1f} points (95 % interval over seeds {low} to {high})"
        lines += [
            "",
            f"{pair['one']} − {pair['other']}: {difference}, p over {pair['tasks']} tasks {pair['p_tasks']:.3g}.",
        ]
    overlap = [each["sentence"] for each in summary.get("overlap", [])]
    lines += ["", "Intervals of one run are over tasks.", *overlap]
    lines += ["", "Files: `recipes/` (all hyperparameters), `environments/` (versions and machine of each run),"]
    return "\n".join([*lines, "`curves.csv`, `evaluations.csv`, `results.tex`.", ""])


def _change_lines(runs: Sequence[_Run]) -> list[str]:
    """Return a section with the recipe changes of runs that were resumed with other keys; empty without changes."""
    lines = [f"- {run.name}: {change}" for run in runs for change in read_changes(run.record.run_dir)]
    before = "`recipes/` has the recipe before each change (`-until-STAGE-step-N`) and the last one."
    return ["", "## Changes of the recipe during the run", "", *lines, "", before] if lines else []


def _short(value: Any) -> str:
    """Format the value of a component option for one cell of a table."""
    if isinstance(value, str) and Path(value).is_absolute():
        value = Path(value).name  # of the machine
    text = to_json(value) if isinstance(value, str | int | float | bool | list | dict | None) else str(value)
    text = mask_message(text).replace("|", r"\|").replace("\n", " ")
    return text if len(text) <= _MAX_OPTION_CHARACTERS else f"{text[: _MAX_OPTION_CHARACTERS - 1]}…"


def _held_out_tasks(runs: Sequence[_Run], samples: int) -> int:
    """Return the number of tasks of the largest evaluation; a source can have fewer than `evaluation.episodes`."""
    return max((int(result["episodes"]) for _, _, result in _evaluations(runs)), default=0) // samples


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _commit(git: Mapping[str, Any] | None) -> str:
    if not git:
        return "none, since the run started in no git repository: `git init` and `git commit` before `whetstone train`"
    return f"{git['commit']}{' with uncommitted changes' if git['is_dirty'] else ''}"
