"""Runs in the viewer: recipe, progress, curves, evaluations and verdict; runs are found in folders.

Note:
    Viewing executes no code of a run. Its recipe is read as plain values, its tokenizer from a checkpoint. Only credit
    and demonstrations are recomputed with its components, on request.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tokenizers import Tokenizer

from whetstone.errors import RecipeError, RunDirectoryError, did_you_mean
from whetstone.evaluation.stage_results import StageResult, read_stage_results
from whetstone.json_lines import UNREADABLE
from whetstone.recipe.resume_changes import parse_changes
from whetstone.recipe.variables import mask_recipe_text
from whetstone.recipe.yaml_text import yaml_document
from whetstone.reporting.alarms import find_alarms, stored_alarms
from whetstone.reporting.change_detection import MIN_STEPS, find_change, read_values
from whetstone.strict_json import to_plain_values as to_plain
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.viewer.metric_series import MetricRows, build_curves
from whetstone.viewer.run_files import RunFiles
from whetstone.viewer.trajectory_index import TrajectoryIndex

_QUIET_SECONDS = 60.0
"""Minimum time without writes after which an unfinished run counts as silent; longer for long steps."""
_SLICE_SECONDS = 0.5
_MAX_RECIPE = 256 * 2**10
"""Maximum length of a recipe in characters."""
_MAX_TOKENIZER_BYTES = 64 * 2**20


class ViewedRun:
    """Run directory as the viewer shows it: recipe, progress, curves, evaluations and trajectories.

    Args:
        name: Unique name in addresses.
        cache: Folder of its index; the user's cache by default.
        follow_symlinks: Whether a symbolic link may lead out of the folder.
    """

    def __init__(self, folder: Path, name: str, *, cache: Path | None = None, follow_symlinks: bool = False) -> None:
        self.folder, self.name, self.files = folder, name, RunFiles(folder, follow_symlinks)
        self.index = TrajectoryIndex(folder, folder=cache, follow_symlinks=follow_symlinks)
        self.metrics = MetricRows(folder, follow_symlinks=follow_symlinks)
        self._tokenizer: tuple[Path, Tokenizer] | None = None
        self._curves: tuple[list[float], dict[str, dict[str, Any]]] | None = None
        self._stop = threading.Event()
        self._reader: threading.Thread | None = None
        self.failed = ""
        """Reason why the run can no longer be read; empty otherwise."""

    def start_watching(self) -> None:
        """Start a thread that reads new data of the run until `close`."""
        self._reader = threading.Thread(target=self._read, name=f"reads {self.name}", daemon=True)
        self._reader.start()

    def refresh(self) -> None:
        """Read all metrics and trajectories that the run has written since the last call."""
        self.metrics.refresh()
        self.index.refresh()

    def close(self) -> None:
        """Stop the reading thread and close the index."""
        self._stop.set()
        if self._reader is not None:
            self._reader.join(timeout=10)
        self.index.close()

    def _read(self) -> None:
        while not self._stop.is_set():
            try:
                self.metrics.refresh()
                done = self.index.refresh(max_seconds=_SLICE_SECONDS)
                self.failed = ""
            except (OSError, sqlite3.Error) as error:  # the folder went away, the disk of the cache is full
                done, self.failed = True, f"the run can no longer be read: {error}"
            self._stop.wait(1.0 if done else 0.01)

    # ------------------------------------------------------------ contents

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Return the resolved recipe of the run as plain values; empty if the file cannot be read."""
        try:
            parsed = yaml_document(self.recipe_text, "recipe.yaml", plain=True, max_characters=_MAX_RECIPE)
        except RecipeError:
            return {}
        return parsed if isinstance(parsed, dict) else {}

    @cached_property
    def recipe_text(self) -> str:
        """Return the stored recipe as YAML text, with literal secrets masked."""
        try:
            text = self.files.read(self.folder / "recipe.yaml", max_bytes=_MAX_RECIPE).decode(errors="replace")
            return mask_recipe_text(text)
        except OSError:
            return ""

    @property
    def title(self) -> str:
        """Return the title of the run from its recipe, in one line."""
        return sanitize_text(str(self.recipe.get("title") or self.name))

    @property
    def summary(self) -> dict[str, Any]:
        """Return the content of `summary.json`; empty until the run is finished."""
        return self.files.read_object(self.folder / "summary.json")

    def planned_steps(self) -> dict[str, int]:
        """Return the number of steps that the recipe plans, by stage."""
        steps = {}
        for stage in (
            "pretraining",
            "supervised",
            "preference",
            "offline",
            "distillation",
            "sampling",
            "reinforcement",
        ):
            settings = self.recipe.get(stage)
            if isinstance(settings, dict) and isinstance(settings.get("steps"), int):
                steps[stage] = settings["steps"]
        return steps

    def get_revision(self) -> list[float]:
        """Return numbers that change whenever the run has new data, so that the page knows when to reload."""
        times = [_modified_at(self.folder / name) for name in ("metrics.jsonl", "summary.json", "evaluations")]
        return [len(self.metrics.rows), self.index.count_trajectories(), *times]

    def read_evaluations(self) -> list[dict[str, Any]]:
        """Read the evaluations on held-out tasks, in the order of training.

        Returns:
            Per evaluation its name, step (None at the end of a stage), success, interval, number of episodes, and mean
            reward, turns, tool calls and tokens.
        """
        return _read_evaluations(self.files, self.folder / "evaluations", ["untrained", *self.metrics.list_stages()])

    def describe_progress(self) -> dict[str, Any]:
        """Return the progress of the run as a JSON object.

        It has the stage, the step, the planned steps, the time since the last write, and the state of the run:
        `finished`, `running`, `silent` (no new data for a long time) or `empty`.
        """
        stages, planned = self.metrics.list_stages(), self.planned_steps()
        stage = stages[-1] if stages else ""
        rows = self.metrics.stage_rows(stage)
        last = max(_modified_at(self.folder / name) for name in ("metrics.jsonl", "store/journal.jsonl"))
        age = max(0.0, time.time() - last) if last else None
        lengths = [(row.get("time/rollout") or 0.0) + (row.get("time/update") or 0.0) for row in rows[-20:]]
        patience = max(_QUIET_SECONDS, 10 * median(lengths) if lengths else 0.0)
        if (self.folder / "summary.json").is_file():
            state = "finished"
        elif age is None or not (rows or self.index.count_trajectories()):
            state = "empty" if age is None or age > patience else "running"
        else:
            state = "running" if age <= patience else "silent"
        return {
            "state": state, "stage": stage, "step": rows[-1]["step"] if rows else 0, "steps": planned.get(stage),
            "stages": stages, "planned": planned, "age": age,
            "seconds": rows[-1].get("time/elapsed_seconds") if rows else None,
        }  # fmt: skip

    def stage_results(self) -> list[StageResult]:
        """Return the result of each stage of a finished run, compared with the start of the stage.

        The result is empty if the summary cannot be read.
        """
        try:
            return read_stage_results(self.summary)
        except UNREADABLE:
            return []

    def assess_health(self) -> dict[str, str]:
        """Assess whether the run goes well: a `word`, and a sentence (`said`).

        The word is `learning`, `learned`, `flat`, `falling`, `worse`, `early` or `unknown`. The last stage of a
        finished run determines it, compared with its own start.
        """
        results = self.stage_results()
        if results:
            word = {"better": "learned", "worse": "worse", "unclear": "flat"}.get(results[-1].outcome, "unknown")
            return {"word": word, "said": f"Success on held-out tasks. {'. '.join(each.sentence for each in results)}."}
        rows = self.metrics.stage_rows("reinforcement")
        for key, form in (("episode/success", "{:.0%}"), ("reward/mean", "{:.3g}")):
            if rows and rows[-1].get(key) is not None:
                return _judge_curve(rows, key, form)
        stage = next(iter(reversed(self.metrics.list_stages())), "")
        rows = self.metrics.stage_rows(stage)
        values = [row["loss/total"] for row in rows if isinstance(row.get("loss/total"), int | float)]
        if len(values) < 2:
            return {"word": "early", "said": "Too early to judge: there are no steps yet."}
        falls = values[-1] < values[0]
        sentence = f"The loss of {stage} {'fell' if falls else 'did not fall'}: {values[0]:.3g} → {values[-1]:.3g}."
        return {"word": "learning" if falls else "flat", "said": sentence}

    def list_recipe_changes(self) -> list[str]:
        """Describe the changes of the recipe since the run started, one line each."""
        try:
            stored = json.loads(self.files.read(self.folder / "changes.json", max_bytes=_MAX_RECIPE))
            return [sanitize_text(str(change)) for change in parse_changes(stored)]
        except (OSError, ValueError):
            return []

    def describe_run(self) -> dict[str, Any]:
        """Return the overview of the run as a JSON object: progress, health, evaluations, alarms, problems and more."""
        return {
            "name": self.name,
            "title": self.title,
            "folder": str(self.folder),
            "progress": self.describe_progress(),
            "verdict": self.assess_health(),
            "results": [result.to_json() for result in self.stage_results()],
            "alarms": [asdict(alarm) for alarm in find_alarms(self.metrics.rows)],
            "stored_alarms": stored_alarms(self.metrics.rows),
            "evaluations": self.read_evaluations(),
            "recipe": flatten_values(self.recipe),
            "recipe_text": sanitize_text(self.recipe_text),
            "changes": self.list_recipe_changes(),
            "remarks": self.list_problems(),
        }

    def list_problems(self) -> list[str]:
        """Describe the files of the run that are missing or cannot be read, one line each."""
        problems = self.index.list_problems()
        if (self.folder / "recipe.yaml").is_file() and not self.recipe:
            problems.append("recipe.yaml cannot be read: it is not YAML, or too large or too deep")
        if self.metrics.unreadable:
            problems.append(f"metrics.jsonl: {self.metrics.unreadable}")
        if self.metrics.damaged:
            problems.append(f"metrics.jsonl: {self.metrics.damaged} lines cannot be read and are skipped")
        problems += [
            f"{name} is missing" for name in ("recipe.yaml", "metrics.jsonl") if not (self.folder / name).is_file()
        ]
        if not self.index.file.is_kept:
            problems.append("the cache folder is not writable: the index is rebuilt each time")
        return problems + ([self.failed] if self.failed else [])

    def build_curves(self) -> dict[str, dict[str, Any]]:
        """Return the curves of all metrics as JSON, by stage and name.

        `evaluation/success` is the success rate on held-out tasks.
        """
        revision = self.get_revision()
        if self._curves is None or self._curves[0] != revision:
            self._curves = revision, _build_run_curves(self.metrics, self.read_evaluations())
        return self._curves[1]

    def load_tokenizer(self) -> Tokenizer | None:
        """Load the tokenizer of the last checkpoint, or of the initial policy; None if the run has neither."""
        policy = self.recipe.get("policy")
        path = policy.get("path") if isinstance(policy, dict) else None
        saved = sorted(self.folder.glob("checkpoints/step-*"), key=lambda folder: (len(folder.name), folder.name))
        folders = [*reversed(saved), *([Path(path)] if isinstance(path, str) else [])]
        for folder in folders:
            file = folder / "tokenizer.json"
            if self._tokenizer is not None and self._tokenizer[0] == file:
                return self._tokenizer[1]
            files = self.files if folder in saved else RunFiles(folder, follow_symlinks=True)
            try:
                content = files.read(file, max_bytes=_MAX_TOKENIZER_BYTES)
                self._tokenizer = file, Tokenizer.from_str(content.decode())
            except Exception:  # the library raises nothing narrower; a checkpoint may be incomplete
                continue
            return self._tokenizer[1]
        return None


def _read_evaluations(files: RunFiles, folder: Path, stages: Sequence[str]) -> list[dict[str, Any]]:
    """Read the evaluations of a run in the order of `stages` and steps; see `ViewedRun.read_evaluations`."""
    entries = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        stored = files.read_object(path)
        if not isinstance(stored.get("success"), int | float):
            continue
        if not _is_interval(stored.get("interval")):
            stored["interval"] = None
        stage, _, number = path.stem.rpartition("-")
        step = int(number) if number.isdecimal() and 6 <= len(number) <= 12 else None
        stage = stage if step is not None else path.stem
        position = stages.index(stage) if stage in stages else len(stages)
        keys = ("success", "interval", "episodes", "reward", "turns", "tool_calls", "action_tokens", "kinds", "members")
        entry = {"name": path.stem, "stage": stage, "step": step} | {key: stored.get(key) for key in keys}
        entries.append((position, step if step is not None else 2**40, entry))
    return [entry for *_, entry in sorted(entries, key=lambda each: each[:2])]


def _build_run_curves(metrics: MetricRows, evaluations: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the curves of a run by stage and key; see `ViewedRun.build_curves`."""
    curves: dict[str, dict[str, Any]] = {}
    for stage in metrics.list_stages():
        curves[stage] = {key: asdict(curve) for key, curve in build_curves(metrics.stage_rows(stage)).items()}
    held_out = [each for each in evaluations if each["step"] is not None and each.get("interval")]
    if held_out:
        curves.setdefault(held_out[0]["stage"], {})["evaluation/success"] = {
            "x": [each["step"] for each in held_out],
            "y": [each["success"] for each in held_out],
            "low": [each["interval"][0] for each in held_out],
            "high": [each["interval"][1] for each in held_out],
        }
    return curves


def open_runs(folders: Sequence[Path], *, cache: Path | None = None, follow_symlinks: bool = False) -> list[ViewedRun]:
    """Open the runs in these folders.

    A folder may be a run, contain the stages of one, a comparison, or several runs.

    Raises:
        RunDirectoryError: A folder contains no run.
    """
    runs: list[Path] = []
    for folder in folders:
        inside = _runs_in(folder)
        if not inside:
            raise RunDirectoryError(_no_run_text(folder))
        runs += [run for run in inside if run not in runs]
    names: dict[str, Path] = {}
    for run in runs:
        parts = run.resolve().parts
        name = next(n for k in range(1, len(parts) + 2) if (n := "/".join(parts[-k:])) not in names or k > len(parts))
        names[name] = run
    return [ViewedRun(run, name, cache=cache, follow_symlinks=follow_symlinks) for name, run in names.items()]


def _runs_in(folder: Path) -> list[Path]:
    if _is_run(folder):
        stages = [path for path in sorted((folder / "stages").glob("*")) if _is_run(path)]
        metrics = folder / "metrics.jsonl"
        own = not stages or (metrics.is_file() and metrics.stat().st_size > 0)
        return [*([folder] if own else []), *stages]
    if not folder.is_dir():
        return []
    inside = sorted(folder.glob("*/recipe.yaml")) or sorted(folder.glob("runs/*/recipe.yaml"))
    return [run for path in inside for run in _runs_in(path.parent)]


def _is_run(folder: Path) -> bool:
    """Return whether a folder is a run; a run without its recipe can still be viewed."""
    return any((folder / name).exists() for name in ("recipe.yaml", "metrics.jsonl", "trajectories"))


def _no_run_text(folder: Path) -> str:
    if not folder.exists():
        siblings = (
            sorted(path.name for path in folder.parent.iterdir() if path.is_dir()) if folder.parent.is_dir() else []
        )
        return (
            f"{folder}: no such folder{did_you_mean(folder.name, [n for n in siblings if _is_run(folder.parent / n)])}"
        )
    return f"{folder}: holds no run; create one with `whetstone train RECIPE --run-dir {folder}`"


def flatten_values(value: Any, key: str = "") -> dict[str, str]:
    """Return values as text by dotted key; a list is one value."""
    if isinstance(value, Mapping) and value:
        values: dict[str, str] = {}
        for name, each in value.items():
            values |= flatten_values(each, f"{key}.{name}" if key else str(name))
        return values
    return {
        key: sanitize_text(
            value if isinstance(value, str) else json.dumps(to_plain(value, other=str), ensure_ascii=False)
        )
    }


def _judge_curve(rows: Sequence[Mapping[str, Any]], key: str, form: str) -> dict[str, str]:
    """Judge a run in progress by the change of success, or of the reward, from its first steps to its last."""
    what = key.partition("/")[2] if "success" in key else "reward"
    fall, rise = find_change(rows, key, -1), find_change(rows, key, 1)
    if fall is not None:
        return {"word": "falling", "said": f"{what.capitalize()} fell {fall.describe(form)}."}
    if rise is not None:
        return {"word": "learning", "said": f"{what.capitalize()} rose {rise.describe(form)}."}
    values = read_values(rows, key)
    if len(values) < MIN_STEPS:
        early = f"Too early to judge: {len(rows)} steps; {what} is compared from {MIN_STEPS} steps on."
        return {"word": "early", "said": early}
    first, last = (form.format(fmean(part)) for part in (values[:10], values[-10:]))
    return {"word": "flat", "said": f"{what.capitalize()} was {first} at the start, {last} now, in {len(rows)} steps."}


def _is_interval(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(end, int | float) for end in value)


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
