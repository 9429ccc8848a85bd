"""Tasks from tables: Parquet files, and datasets of Hugging Face that lie in a folder.

    source: parquet        path: FILE or FOLDER
    source: huggingface    path: FOLDER, as `save_to_disk` wrote it, or as a repository of the hub looks

Columns are named in the recipe; what is not named stays out of the task.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.errors import RecipeError, TaskError, did_you_mean
from whetstone.tasks.jsonl import Endless
from whetstone.tasks.splits import check_apart, split
from whetstone.trajectory import Task


class _Rows:
    """Tasks from rows with columns."""

    def __init__(
        self,
        rows: Mapping[str, Iterable[Mapping[str, Any]]],
        *,
        where: str,
        seed: int,
        prompt: str,
        answer: str,
        id: str,
        tags: list[str],
        private: list[str],
        held_out: str,
        held_out_share: float,
        training: str,
    ) -> None:
        named = {
            name: list(_tasks(each, f"{where}:{name}", name, prompt, answer, id, tags, private))
            for name, each in rows.items()
            if name in (training, held_out)
        }
        if training not in named:
            raise TaskError(f"{where}: no split {training}{did_you_mean(training, rows)}")
        if held_out and held_out not in named:
            raise TaskError(f"{where}: no split {held_out}{did_you_mean(held_out, rows)}")
        if held_out:
            trained, kept = named[training], named[held_out]
            check_apart(trained, kept, where=where)
        else:
            trained, kept = split(named[training], held_out_share, where=where)
        if not trained or not kept:
            raise TaskError(f"{where}: no tasks in it")
        self._held_out, self._endless = kept, Endless(trained, seed=seed)

    def task(self, index: int) -> Task:
        """Each training task once an epoch, every epoch in another order."""
        return self._endless[index]

    def held_out(self, count: int) -> Sequence[Task]:
        """In the order of the table."""
        return self._held_out[:count]


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
        held_out_share: That share.

    Raises:
        TaskError: No such file, split or column, or the splits overlap.
        RecipeError: `pyarrow` is not installed.
    """

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
        held_out_share: float = 0.1,
    ) -> None:
        super().__init__(
            _parquet(Path(path), training, held_out), where=path, seed=seed, prompt=prompt, answer=answer, id=id,
            tags=tags or [], private=private or [], held_out=held_out, held_out_share=held_out_share, training=training,
        )  # fmt: skip


class HuggingFace(_Rows):
    """A dataset in a folder, as `save_to_disk` writes it or as one lies on the hub. Nothing is fetched.

    Args:
        path: The folder.
        seed: As of `Parquet`.
        prompt: As of `Parquet`.
        answer: As of `Parquet`.
        id: As of `Parquet`.
        tags: As of `Parquet`.
        private: As of `Parquet`.
        training: As of `Parquet`.
        held_out: As of `Parquet`.
        held_out_share: As of `Parquet`.

    Raises:
        TaskError: As of `Parquet`.
        RecipeError: `datasets` is not installed.
    """

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
        held_out_share: float = 0.1,
    ) -> None:
        super().__init__(
            _dataset(Path(path), training), where=path, seed=seed, prompt=prompt, answer=answer, id=id,
            tags=tags or [], private=private or [], held_out=held_out, held_out_share=held_out_share, training=training,
        )  # fmt: skip


def _parquet(path: Path, training: str, held_out: str) -> dict[str, list[Mapping[str, Any]]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise RecipeError("tasks: Parquet needs pyarrow: pip install 'whetstone[datasets]'") from None
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


def _dataset(path: Path, training: str) -> Mapping[str, Iterable[Mapping[str, Any]]]:
    try:
        import datasets
    except ImportError:
        raise RecipeError("tasks: datasets are read by `datasets`: pip install 'whetstone[datasets]'") from None
    if not path.is_dir():
        raise TaskError(f"{path}: no such folder; datasets are read from a folder, nothing is fetched")
    try:
        written = (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()
        read = datasets.load_from_disk(str(path)) if written else datasets.load_dataset(str(path))
    except Exception as error:  # the library raises whatever its readers raise
        raise TaskError(f"{path}: {type(error).__name__}: {str(error).splitlines()[0][:160]}") from None
    return dict(read) if isinstance(read, dict) else {training: read}


def _tasks(
    rows: Iterable[Mapping[str, Any]],
    where: str,
    name: str,
    prompt: str,
    answer: str,
    id: str,
    tags: Sequence[str],
    private: Sequence[str],
) -> Iterable[Task]:
    for number, row in enumerate(rows, start=1):
        for column in (prompt, *([answer] if answer else ()), *([id] if id else ()), *tags, *private):
            if column not in row:
                raise TaskError(f"{where}, row {number}: no column {column}{did_you_mean(column, row)}")
        if not isinstance(row[prompt], str):
            raise TaskError(f"{where}, row {number}: {prompt} is {type(row[prompt]).__name__}, not text")
        known = {column: row[column] for column in private}
        if answer:
            known["answer"] = row[answer]
        # what JSON cannot hold (dates, bytes) as text, so that a trajectory can be written
        known = json.loads(json.dumps(known, default=str))
        own = str(row[id]) if id else f"{name}/{number}"
        yield Task(own, row[prompt], known, {tag: str(row[tag]) for tag in tags})
