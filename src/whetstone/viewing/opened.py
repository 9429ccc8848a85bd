"""Which runs are looked at, and how is each of them doing? A folder may hold one, several, or a comparison.

Easy to get wrong: nothing of a run's own code is run to look at it. Its recipe is read as plain values, and its
tokenizer from a checkpoint; only credit and demonstrations, which are computed again, take its parts, when asked for.
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
from whetstone.plain_json import plain as to_plain
from whetstone.recipe.continuing import parse_changes
from whetstone.recipe.variables import mask_recipe_text
from whetstone.recipe.yaml_text import yaml_document
from whetstone.reporting.alarms import find_alarms, stored_alarms
from whetstone.reporting.change_detection import MIN_STEPS, find_change, read_values
from whetstone.tools.plain_text import plain
from whetstone.viewing.index import TrajectoryIndex
from whetstone.viewing.run_files import RunFiles
from whetstone.viewing.series import MetricRows, curves_of

_QUIET_SECONDS = 60.0
"""After which a run that writes nothing, and is not over, may have been stopped; longer where its steps are."""
_SLICE_SECONDS = 0.5
_MAX_RECIPE = 256 * 2**10
"""Characters of a recipe."""
_MAX_TOKENIZER_BYTES = 64 * 2**20


class OpenedRun:
    """One run that is looked at.

    Args:
        name: Unique among those that are looked at; what addresses call it.
        cache: Where its index is kept; the user's cache unless said.
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
        """Why the run can no longer be read."""

    def watch(self) -> None:
        """Read what it writes, beside everything else, until `close`."""
        self._reader = threading.Thread(target=self._read, name=f"reads {self.name}", daemon=True)
        self._reader.start()

    def refresh(self) -> None:
        """Read all that is there."""
        self.metrics.refresh()
        self.index.refresh()

    def close(self) -> None:
        """Read no more."""
        self._stop.set()
        if self._reader is not None:
            self._reader.join(timeout=10)
        self.index.close()

    def _read(self) -> None:
        while not self._stop.is_set():
            try:
                self.metrics.refresh()
                done = self.index.refresh(most_seconds=_SLICE_SECONDS)
                self.failed = ""
            except (OSError, sqlite3.Error) as error:  # the folder went away, the disk of the cache is full
                done, self.failed = True, f"the run can no longer be read: {error}"
            self._stop.wait(1.0 if done else 0.01)

    # ------------------------------------------------------------ what it is

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Its resolved recipe as plain values; empty if it cannot be read."""
        try:
            found = yaml_document(self.recipe_text, "recipe.yaml", plain=True, max_characters=_MAX_RECIPE)
        except RecipeError:
            return {}
        return found if isinstance(found, dict) else {}

    @cached_property
    def recipe_text(self) -> str:
        """The stored text, with literal secrets masked."""
        try:
            text = self.files.read(self.folder / "recipe.yaml", max_bytes=_MAX_RECIPE).decode(errors="replace")
            return mask_recipe_text(text)
        except OSError:
            return ""

    @property
    def title(self) -> str:
        """What it says of itself, in a line."""
        return plain(str(self.recipe.get("title") or self.name))

    @property
    def summary(self) -> dict[str, Any]:
        """What it came to; empty until it is over."""
        return self.files.read_object(self.folder / "summary.json")

    def planned(self) -> dict[str, int]:
        """By stage, how many steps its recipe asks for."""
        found = {}
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
                found[stage] = settings["steps"]
        return found

    def revision(self) -> list[float]:
        """Differs where there is something new."""
        times = [_changed(self.folder / name) for name in ("metrics.jsonl", "summary.json", "evaluations")]
        return [len(self.metrics.rows), self.index.count(), *times]

    def evaluations(self) -> list[dict[str, Any]]:
        """Success on tasks it does not learn from, in the order of training: name, step (None at a stage's end),
        success, interval, episodes, reward, turns, tool calls, tokens."""
        return _read_evaluations(self.files, self.folder / "evaluations", ["untrained", *self.metrics.stages()])

    def progress(self) -> dict[str, Any]:
        """How far it is: stage, step, of how many, when it last wrote, and whether it is `finished`, `running`,
        `silent` (nothing came for long) or `empty`."""
        stages, planned = self.metrics.stages(), self.planned()
        stage = stages[-1] if stages else ""
        rows = self.metrics.of(stage)
        last = max(_changed(self.folder / name) for name in ("metrics.jsonl", "store/journal.jsonl"))
        age = max(0.0, time.time() - last) if last else None
        lengths = [(row.get("time/rollout") or 0.0) + (row.get("time/update") or 0.0) for row in rows[-20:]]
        patience = max(_QUIET_SECONDS, 10 * median(lengths) if lengths else 0.0)
        if (self.folder / "summary.json").is_file():
            state = "finished"
        elif age is None or not (rows or self.index.count()):
            state = "empty" if age is None or age > patience else "running"
        else:
            state = "running" if age <= patience else "silent"
        return {
            "state": state, "stage": stage, "step": rows[-1]["step"] if rows else 0, "steps": planned.get(stage),
            "stages": stages, "planned": planned, "age": age,
            "seconds": rows[-1].get("time/elapsed_seconds") if rows else None,
        }  # fmt: skip

    def stage_results(self) -> list[StageResult]:
        """Each stage of a finished run, compared with its own start; none if the summary cannot be read."""
        try:
            return read_stage_results(self.summary)
        except UNREADABLE:
            return []

    def verdict(self) -> dict[str, str]:
        """Return whether the run goes well, as a `word` and a sentence (`said`).

        The word is `learning`, `learned`, `flat`, `falling`, `worse`, `early` or `unknown`. The last stage of a
        finished run determines it, compared with its own start.
        """
        results = self.stage_results()
        if results:
            word = {"better": "learned", "worse": "worse", "unclear": "flat"}.get(results[-1].outcome, "unknown")
            return {"word": word, "said": f"Success on held-out tasks. {'. '.join(each.sentence for each in results)}."}
        rows = self.metrics.of("reinforcement")
        for key, form in (("episode/success", "{:.0%}"), ("reward/mean", "{:.3g}")):
            if rows and rows[-1].get(key) is not None:
                return _judge_curve(rows, key, form)
        stage = next(iter(reversed(self.metrics.stages())), "")
        rows = self.metrics.of(stage)
        values = [row["loss/total"] for row in rows if isinstance(row.get("loss/total"), int | float)]
        if len(values) < 2:
            return {"word": "early", "said": "Too early to say: there are no steps yet."}
        falls = values[-1] < values[0]
        said = f"The loss of {stage} {'fell' if falls else 'did not fall'}: {values[0]:.3g} → {values[-1]:.3g}."
        return {"word": "learning" if falls else "flat", "said": said}

    def changes(self) -> list[str]:
        """Changes of the recipe since the run started, one line each."""
        try:
            stored = json.loads(self.files.read(self.folder / "changes.json", max_bytes=_MAX_RECIPE))
            return [plain(str(change)) for change in parse_changes(stored)]
        except (OSError, ValueError):
            return []

    def overview(self) -> dict[str, Any]:
        """All of that, with alerts and what cannot be read, as JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "folder": str(self.folder),
            "progress": self.progress(),
            "verdict": self.verdict(),
            "results": [result.to_json() for result in self.stage_results()],
            "alarms": [asdict(alarm) for alarm in find_alarms(self.metrics.rows)],
            "stored_alarms": stored_alarms(self.metrics.rows),
            "evaluations": self.evaluations(),
            "recipe": flat(self.recipe),
            "recipe_text": plain(self.recipe_text),
            "changes": self.changes(),
            "remarks": self.remarks(),
        }

    def remarks(self) -> list[str]:
        """What of it cannot be read, and what is missing."""
        said = self.index.remarks()
        if (self.folder / "recipe.yaml").is_file() and not self.recipe:
            said.append("recipe.yaml cannot be read: it is no YAML, or larger or deeper than a recipe may be")
        if self.metrics.unreadable:
            said.append(f"metrics.jsonl: {self.metrics.unreadable}")
        if self.metrics.damaged:
            said.append(f"metrics.jsonl: {self.metrics.damaged} lines cannot be read and are left out")
        said += [
            f"{name} is missing" for name in ("recipe.yaml", "metrics.jsonl") if not (self.folder / name).is_file()
        ]
        if not self.index.is_kept:
            said.append("the cache folder cannot be written: the index is made anew each time")
        return said + ([self.failed] if self.failed else [])

    def curves(self) -> dict[str, dict[str, Any]]:
        """By stage and key, curves as JSON; `evaluation/success` is of tasks that are held out."""
        revision = self.revision()
        if self._curves is None or self._curves[0] != revision:
            self._curves = revision, _curves_of_run(self.metrics, self.evaluations())
        return self._curves[1]

    def tokenizer(self) -> Tokenizer | None:
        """Of its last checkpoint, or of the folder its policy began with; None where there is none yet."""
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
            except Exception:  # the library raises nothing narrower; a checkpoint may be half there
                continue
            return self._tokenizer[1]
        return None


def _read_evaluations(files: RunFiles, folder: Path, stages: Sequence[str]) -> list[dict[str, Any]]:
    """Read the evaluations of a run in the order of `stages` and steps; see `OpenedRun.evaluations`."""
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
        keys = ("success", "interval", "episodes", "reward", "turns", "tool_calls", "action_tokens", "kinds")
        entry = {"name": path.stem, "stage": stage, "step": step} | {key: stored.get(key) for key in keys}
        entries.append((position, step if step is not None else 2**40, entry))
    return [entry for *_, entry in sorted(entries, key=lambda each: each[:2])]


def _curves_of_run(metrics: MetricRows, evaluations: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the curves of a run by stage and key; see `OpenedRun.curves`."""
    curves: dict[str, dict[str, Any]] = {}
    for stage in metrics.stages():
        curves[stage] = {key: asdict(curve) for key, curve in curves_of(metrics.of(stage)).items()}
    held_out = [each for each in evaluations if each["step"] is not None and each.get("interval")]
    if held_out:
        curves.setdefault(held_out[0]["stage"], {})["evaluation/success"] = {
            "x": [each["step"] for each in held_out],
            "y": [each["success"] for each in held_out],
            "low": [each["interval"][0] for each in held_out],
            "high": [each["interval"][1] for each in held_out],
        }
    return curves


def opened_runs(
    folders: Sequence[Path], *, cache: Path | None = None, follow_symlinks: bool = False
) -> list[OpenedRun]:
    """Open the runs in these folders: a run, the stages of one, a comparison, or a folder that holds runs.

    Raises:
        RunDirectoryError: There is none in one of them.
    """
    found: list[Path] = []
    for folder in folders:
        inside = _runs_in(folder)
        if not inside:
            raise RunDirectoryError(_none_in(folder))
        found += [run for run in inside if run not in found]
    names: dict[str, Path] = {}
    for run in found:
        parts = run.resolve().parts
        name = next(n for k in range(1, len(parts) + 2) if (n := "/".join(parts[-k:])) not in names or k > len(parts))
        names[name] = run
    return [OpenedRun(run, name, cache=cache, follow_symlinks=follow_symlinks) for name, run in names.items()]


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
    """Also one whose recipe went missing: what it wrote can be looked at."""
    return any((folder / name).exists() for name in ("recipe.yaml", "metrics.jsonl", "trajectories"))


def _none_in(folder: Path) -> str:
    if not folder.exists():
        there = sorted(path.name for path in folder.parent.iterdir() if path.is_dir()) if folder.parent.is_dir() else []
        return f"{folder}: no such folder{did_you_mean(folder.name, [n for n in there if _is_run(folder.parent / n)])}"
    return f"{folder}: holds no run; `whetstone train RECIPE --run-dir {folder}` makes one"


def flat(value: Any, key: str = "") -> dict[str, str]:
    """By dotted key, each value as it is written; lists are one."""
    if isinstance(value, Mapping) and value:
        found: dict[str, str] = {}
        for name, each in value.items():
            found |= flat(each, f"{key}.{name}" if key else str(name))
        return found
    return {key: plain(value if isinstance(value, str) else json.dumps(to_plain(value, other=str), ensure_ascii=False))}


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
        early = f"Too early to say: {len(rows)} steps; from {MIN_STEPS} on {what} is compared."
        return {"word": "early", "said": early}
    first, last = (form.format(fmean(part)) for part in (values[:10], values[-10:]))
    return {"word": "flat", "said": f"{what.capitalize()} was {first} at the start, {last} now, in {len(rows)} steps."}


def _is_interval(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(end, int | float) for end in value)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
