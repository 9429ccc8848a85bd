"""Chores in a folder: move, rename, count, edit and delete files with a shell. The final state of the folder is judged.

Note:
    A chore is done if the required files changed *and nothing else did*. Other entries can be empty, hidden, binary,
    links, or nested too deep to be listed; a folder that cannot be listed counts as wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from random import Random
from typing import Any

from whetstone.environments.built_in.graded_workspace import WorkspaceVerdict
from whetstone.environments.built_in.scripted_tasks import Scripted, script_call, script_text
from whetstone.sandbox import Ending
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task

_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty", "knoll", "lotus")


class FolderCheck(WorkspaceVerdict):
    """Component without tools that compares the folder with the `expected` files.

    List it after the tool whose folder it reads: `shell`, `python` or `files`. If the task has milestones with a name
    (`state`) and `files`, the folder is compared with them after each turn, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reached: dict[str, int] = {}

    def open(self, episode: Episode) -> None:
        """Store the task and the session of the folder."""
        super().open(episode)
        self._reached = {}

    async def observe_turn(self, number: int) -> None:
        """Store the number of the action after which the folder first has the files of a milestone or a later one."""
        milestones = [each for each in self.session_and_task[1].private.get("milestones", ()) if "files" in each]
        for k, milestone in enumerate(milestones):
            if milestone["state"] not in self._reached and await self._has_only(milestone["files"]):
                for earlier in milestones[: k + 1]:
                    self._reached.setdefault(earlier["state"], number)

    async def verdict(self) -> Mapping[str, Any]:
        """Return whether the folder has exactly the expected files.

        Other files, links or folders are failures. A line break at the end of a file is optional.
        """
        private = self.session_and_task[1].private
        right, strange = await self._compare(private["expected"])
        done = right == len(private["expected"]) and strange == 0
        counts = {"success": done, "score": float(done), "right_files": right, "strange_files": strange or 0}
        return {**counts, "milestone_turns": self._reached} if "milestones" in private else counts

    async def _has_only(self, files: Mapping[str, str]) -> bool:
        return await self._compare(files) == (len(files), 0)

    async def _compare(self, expected: Mapping[str, str]) -> tuple[int, int | None]:
        """Return the number of right files and of other entries; None if the folder cannot be listed."""
        session, _ = self.session_and_task
        listing = await session.call_file_tool("list_entries", path=".")
        entries = _read(listing.value) if listing.ending is Ending.OK else None
        if entries is None:
            return 0, None
        right = 0
        for path, text in expected.items():
            if entries.get(path) == "file":
                outcome = await session.read(path)
                content = (outcome.data or b"").decode(errors="replace")
                right += outcome.ending is Ending.OK and content.removesuffix("\n") == text.removesuffix("\n")
        allowed = dict.fromkeys(expected, "file") | {
            str(folder): "folder" for path in expected for folder in PurePosixPath(path).parents[:-1]
        }
        return right, sum(allowed.get(path) != kind for path, kind in entries.items())


def _read(listing: str | None) -> dict[str, str] | None:
    """Parse the listing of a folder; None if it is invalid or was cut."""
    try:
        read = json.loads(listing or "")
    except ValueError:
        return None
    return read if isinstance(read, dict) else None


class ChoresTasks(Scripted):
    """Task source of chores in a folder.

    Level 1: one file; level 2: all files of a kind; level 3: two chores in a row.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
        milestones: Whether training tasks have milestones, for the reward `milestones`: the folder after each chore.
    """

    name = "chores"

    def __init__(self, *, seed: int = 0, levels: list[int] | None = None, milestones: bool = False) -> None:
        super().__init__(seed=seed, levels=levels)
        self.milestones = milestones

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        names = draw.sample(_WORDS, 6)
        files = {
            f"{name}.{draw.choice(('txt', 'log', 'md'))}": "".join(
                f"{draw.choice(_WORDS)} {draw.randint(1, 99)}\n" for _ in range(draw.randint(1, 5))
            )
            for name in names
        }
        files.setdefault("notes.txt", "remember the milk\n")
        files.setdefault("old.log", "started\nstopped\n")
        kinds = (_ONE, _ALL, _ONE + _ALL)[level - 1]
        expected = dict(files)
        sentences: list[str] = []
        commands: list[str] = []
        milestones: list[dict[str, Any]] = []
        while len(sentences) < (2 if level == 3 else 1):
            after = dict(expected)
            sentence, command = draw.choice(kinds)(draw, after)
            if after == expected:
                continue  # an agent that does nothing would succeed
            expected = after
            sentences.append(sentence)
            commands.append(command)
            milestones.append({"state": f"chore {len(commands)}", "files": expected})
        private: dict[str, Any] = {
            "files": files,
            "expected": expected,
            "script": [*(script_call("shell", command=command) for command in commands), script_text("done")],
        }
        if self.milestones:
            private["milestones"] = milestones
        return Task(
            "", " Then ".join(sentences), private, {"kind": f"{len(sentences)} chore{'s' * (len(sentences) > 1)}"}
        )


def _top_level_files(files: Mapping[str, str]) -> list[str]:
    """Return the paths of files that are in no subfolder."""
    return sorted(path for path in files if "/" not in path)


def _rename(draw: Random, files: dict[str, str]) -> tuple[str, str]:
    old = draw.choice(_top_level_files(files))
    new = f"{draw.choice(_WORDS)}-{draw.randint(10, 99)}.txt"
    files[new] = files.pop(old)
    return f"Rename {old} to {new}.", f"mv {old} {new}"


def _copy(draw: Random, files: dict[str, str]) -> tuple[str, str]:
    path = draw.choice(_top_level_files(files))
    files[f"backup/{path}"] = files[path]
    return f"Copy {path} into a new folder backup.", f"mkdir -p backup && cp {path} backup/"


def _append(draw: Random, files: dict[str, str]) -> tuple[str, str]:
    path, word = draw.choice(_top_level_files(files)), draw.choice(_WORDS)
    files[path] += f"{word}\n"
    return f"Append a line {word} to {path}.", f"echo {word} >> {path}"


def _sort(draw: Random, files: dict[str, str]) -> tuple[str, str]:
    path = draw.choice(_top_level_files(files))
    files[path] = "".join(sorted(files[path].splitlines(keepends=True)))
    return f"Sort the lines of {path} by their bytes.", f"LC_ALL=C sort -o {path} {path}"


def _gather(draw: Random, files: dict[str, str]) -> tuple[str, str]:
    kind = draw.choice(("txt", "log"))
    for path in [path for path in _top_level_files(files) if path.endswith(f".{kind}")]:
        files[f"{kind}s/{path}"] = files.pop(path)
    return f"Move every .{kind} file into a new folder {kind}s.", f"mkdir -p {kind}s && mv *.{kind} {kind}s/"


def _remove(draw: Random, files: dict[str, str]) -> tuple[str, str]:
    kind = draw.choice(("log", "md"))
    for path in [path for path in _top_level_files(files) if path.endswith(f".{kind}")]:
        del files[path]
    return f"Delete every .{kind} file of this folder.", f"rm -f *.{kind}"


def _count(draw: Random, files: dict[str, str]) -> tuple[str, str]:
    lines = sum(len(files[path].splitlines()) for path in _top_level_files(files) if path.endswith(".txt"))
    files["total"] = f"{lines}\n"
    return "Write into a file total how many lines the .txt files have together.", "cat *.txt | wc -l > total"


def _replace(draw: Random, files: dict[str, str]) -> tuple[str, str]:
    old, new = draw.sample(_WORDS, 2)
    for path in [path for path in _top_level_files(files) if path.endswith(".txt")]:
        files[path] = files[path].replace(old, new.upper())
    return f"Replace {old} by {new.upper()} in every .txt file.", f"sed -i s/{old}/{new.upper()}/g *.txt"


_ONE = (_rename, _copy, _append, _sort)
_ALL = (_count, _replace, _remove, _gather)
