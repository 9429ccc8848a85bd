"""Tasks from tables: Parquet files, and datasets of Hugging Face that lie in a folder.

    source: parquet        path: FILE or FOLDER
    source: huggingface    path: FOLDER, as `save_to_disk` wrote it, or as a repository of the hub looks

Columns are named in the recipe; what is not named stays out of the task.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whetstone.errors import RecipeError, TaskError, did_you_mean
from whetstone.extras import install_command
from whetstone.tasks.listed import ListedTasks
from whetstone.tasks.splits import check_apart, split
from whetstone.trajectory import Task


class _Rows(ListedTasks, ABC):
    """Tasks from rows with columns; a subclass reads them."""

    def __init__(
        self,
        *,
        path: str,
        seed: int = 0,
        prompt: str = "prompt",
        answer: str = "answer",
        id: str = "",
        tags: list[str] | None = None,
        private: list[str] | None = None,
        training: str = "train",
        held_out: str = "",
        held_out_fraction: float = 0.1,
    ) -> None:
        self.columns = _Columns(prompt, answer, id, tuple(tags or ()), tuple(private or ()))
        rows = self.read(Path(path), training, held_out)
        for name in filter(None, (training, held_out)):
            if name not in rows:
                raise TaskError(f"{path}: no split {name}{did_you_mean(name, rows)}")
        trained = list(self.columns.tasks(rows[training], path, training))
        if held_out:
            held_out_tasks = list(self.columns.tasks(rows[held_out], path, held_out))
            check_apart(trained, held_out_tasks, where=path)
        else:
            trained, held_out_tasks = split(trained, held_out_fraction, where=path)
        if not trained or not held_out_tasks:
            raise TaskError(f"{path}: no tasks in it")
        super().__init__(trained, held_out_tasks, seed=seed)

    @abstractmethod
    def read(self, path: Path, training: str, held_out: str) -> Mapping[str, Iterable[Mapping[str, Any]]]:
        """The rows of each split."""


class Parquet(_Rows):
    """A Parquet file, or a folder of them: `train*.parquet` and `test*.parquet`, or any names as one split.

    Args:
        path: The file or folder.
        seed: The order in which training tasks come.
        prompt: The column that is asked.
        answer: The column with the answer; empty: none.
        id: The column with ids; empty: the numbers of the rows.
        tags: Columns that results are broken down by.
        private: Columns a verifier reads besides.
        training: The split that is trained on.
        held_out: The split that is held out; empty: a share of the other.
        held_out_fraction: Fraction of the tasks that is held out.

    Raises:
        TaskError: No such file, split or column, or the splits overlap.
        RecipeError: `pyarrow` is not installed.
    """

    def read(self, path: Path, training: str, held_out: str) -> Mapping[str, Iterable[Mapping[str, Any]]]:
        """See `_Rows`."""
        return parquet_rows(path, training, held_out)


class HuggingFace(_Rows):
    """A dataset in a folder, as `save_to_disk` writes it or as one lies on the hub. Nothing is fetched.

    Args:
        path: The folder.
        seed: As of `Parquet`, and so are the others.

    Raises:
        TaskError: As of `Parquet`.
        RecipeError: `datasets` is not installed.
    """

    def read(self, path: Path, training: str, held_out: str) -> Mapping[str, Iterable[Mapping[str, Any]]]:
        """See `_Rows`."""
        return dataset_rows(path, training)


def parquet_rows(path: Path, training: str, held_out: str) -> dict[str, list[Mapping[str, Any]]]:
    """By split, the rows of a Parquet file or of a folder of them.

    Raises:
        TaskError: There is none, or one cannot be read.
        RecipeError: `pyarrow` is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError:
        raise RecipeError(f"tasks: Parquet needs pyarrow: {install_command('datasets')}") from None
    if not path.exists():
        raise TaskError(f"{path}: no such file or folder")
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise TaskError(f"{path}: no .parquet file in it")
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for file in files:
        name = next(
            (s for s in (training, held_out) if s and file.name.startswith(s)), training if not held_out else ""
        )
        if not name:
            continue
        try:
            rows.setdefault(name, []).extend(pyarrow.parquet.read_table(file).to_pylist())
        except (pyarrow.ArrowException, OSError) as error:
            raise TaskError(f"{file}: {str(error).splitlines()[0]}") from None
    return rows


def dataset_rows(path: Path, training: str) -> Mapping[str, Iterable[Mapping[str, Any]]]:
    """By split, the rows of a dataset of Hugging Face in a folder.

    Raises:
        TaskError: There is none, or it cannot be read.
        RecipeError: `datasets` is not installed.
    """
    try:
        import datasets
    except ImportError:
        raise RecipeError(f"tasks: datasets are read by `datasets`: {install_command('datasets')}") from None
    if not path.is_dir():
        raise TaskError(f"{path}: no such folder; datasets are read from a folder, nothing is fetched")
    try:
        written = (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()
        read = datasets.load_from_disk(str(path)) if written else datasets.load_dataset(str(path))
    except Exception as error:  # the library raises whatever its readers raise
        raise TaskError(f"{path}: {type(error).__name__}: {str(error).splitlines()[0][:160]}") from None
    return dict(read) if isinstance(read, dict) else {training: read}


@dataclass(frozen=True, slots=True)
class _Columns:
    """Which columns a task is made of."""

    prompt: str
    answer: str
    id: str
    tags: tuple[str, ...]
    private: tuple[str, ...]

    def tasks(self, rows: Iterable[Mapping[str, Any]], path: str, name: str) -> Iterable[Task]:
        """A task of each row of a split."""
        needed = [*filter(None, (self.prompt, self.answer, self.id)), *self.tags, *self.private]
        for number, row in enumerate(rows, start=1):
            where = f"{path}:{name}, row {number}"
            for column in needed:
                if column not in row:
                    raise TaskError(f"{where}: no column {column}{did_you_mean(column, row)}")
            if not isinstance(row[self.prompt], str):
                raise TaskError(f"{where}: {self.prompt} is {type(row[self.prompt]).__name__}, not text")
            known = {column: row[column] for column in self.private}
            if self.answer:
                known["answer"] = row[self.answer]
            # what JSON cannot hold (dates, bytes) as text, so that a trajectory can be written
            known = json.loads(json.dumps(known, default=str))
            own = str(row[self.id]) if self.id else f"{name}/{number}"
            yield Task(own, row[self.prompt], known, {tag: str(row[tag]) for tag in self.tags})
