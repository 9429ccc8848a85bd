"""Task source of Harbor folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.environments.harbor.task_folder import HarborFolder, find_folders, read_folder
from whetstone.errors import TaskError
from whetstone.tasks.finite_source import ListedTasks
from whetstone.tasks.readers import OnBadRow
from whetstone.tasks.splits import split_tasks
from whetstone.trajectory import Task


class HarborTasks(ListedTasks):
    """Harbor task folders. The expert plays `solution/solve.sh` as one command.

    Folders with a canary string are refused for training. With `held_out_fraction: 1` they can be evaluated.

    Args:
        path: A task folder, or a folder with task folders at up to three levels.
        seed: Determines the order of training tasks.
        held_out_fraction: Fraction kept for evaluation; 1 keeps all of them and trains on none.
        on_bad_row: `stop` reports the first folder that cannot be played; `skip` excludes and counts them.

    Raises:
        TaskError: No folder can be played, one cannot be (`stop`), or one has a canary string.
    """

    def __init__(
        self, *, path: str, seed: int = 0, held_out_fraction: float = 0.2, on_bad_row: OnBadRow = "stop"
    ) -> None:
        folders, self.skipped = [], 0
        for place in find_folders(Path(path)):
            try:
                folder = read_folder(place)
                if folder.problems:
                    raise TaskError(f"{place}: {folder.problems[0]}")
            except TaskError as error:
                if on_bad_row == "stop":
                    raise TaskError(f"{error}; `on_bad_row: skip` excludes such folders") from None
                self.skipped += 1
                continue
            folders.append(folder)
        if not folders:
            raise TaskError(f"{path}: none of {self.skipped} folders can be played")
        marked = [folder for folder in folders if folder.canary]
        if marked and held_out_fraction < 1:
            raise TaskError(
                f"{marked[0].path / marked[0].canary}: a canary string marks benchmark data, which must not be trained "
                f"on ({len(marked)} of {len(folders)} folders); remove them, or evaluate with held_out_fraction: 1"
            )
        self._path = path
        self._folders = {folder.name: folder for folder in folders}
        if len(self._folders) < len(folders):
            raise TaskError(f"{path}: two folders have one name; task ids are the names of folders")
        tasks = [_task(folder) for folder in folders]
        training, held_out = (
            ([], tasks) if held_out_fraction == 1 else split_tasks(tasks, held_out_fraction, where=path)
        )
        super().__init__(training, held_out, seed=seed)

    def task(self, index: int) -> Task:
        """Return training task `index`.

        Raises:
            TaskError: All tasks are held out.
        """
        if not self._training:
            raise TaskError(f"{self._path}: all tasks are held out (held_out_fraction: 1), none can be trained on")
        return super().task(index)

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the solution of the current step as one command, then an answer.

        Raises:
            TaskError: There is no solution, it has more files than `solve.sh`, or the step is not known because two
                steps have the same instruction.
        """
        prompt_index = max((i for i, message in enumerate(conversation) if message.role == "user"), default=-1)
        if any(message.role == "assistant" for message in conversation[prompt_index + 1 :]):
            return assistant("done")
        steps = self._folders[task.id].steps if task.id in self._folders else ()
        if len(steps) > 1 and prompt_index >= 0:
            steps = tuple(step for step in steps if step.instruction.strip() == conversation[prompt_index].text.strip())
            if len(steps) > 1:
                raise TaskError(f"{task.id}: steps {steps[0].name} and {steps[1].name} have the same instruction")
        script = steps[0].solution_script if steps else None
        if script is None:
            raise TaskError(f"{task.id}: no solution/solve.sh to demonstrate")
        if others := sorted(file.name for file in script.parent.iterdir() if file != script):
            raise TaskError(f"{task.id}: the solution needs {others[0]}, which one command cannot have")
        return assistant("", ToolCall("shell", json.dumps({"command": script.read_text("utf-8")})))


def _task(folder: HarborFolder) -> Task:
    tags = {key: str(folder.metadata[key]) for key in ("difficulty", "category") if folder.metadata.get(key)}
    return Task(folder.name, folder.steps[0].instruction, {"folder": str(folder.path.resolve())}, tags)
