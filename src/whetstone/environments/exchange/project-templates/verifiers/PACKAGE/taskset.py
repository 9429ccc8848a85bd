"""Tasks and reward of an exported environment."""

from collections.abc import Iterable
from pathlib import Path

import verifiers.v1 as vf

from whetstone.environments.exchange import ExportedAction, read_export, replay_export

from .servers.tools import ExportedToolset, ExportedToolsetConfig

EXPORT = read_export(Path(__file__).with_name("environment.json"))


class ExportedTaskData(vf.TaskData):
    """Task by its number."""

    task: int


class ExportedTaskConfig(vf.TaskConfig):
    """Configuration of the tool server."""

    tools: ExportedToolsetConfig = ExportedToolsetConfig()


class ExportedTask(vf.Task[ExportedTaskData, vf.State, ExportedTaskConfig]):
    """Task of the exported environment."""

    @classmethod
    def toolsets(cls, config: ExportedTaskConfig) -> list[vf.Toolset]:
        return [ExportedToolset(config.tools)]

    @vf.reward(weight=1.0)
    async def verdict(self, trace: vf.Trace) -> float:
        """Repeat the actions of the conversation; the reward is the verdict of the environment."""
        actions: list[ExportedAction] = []
        for message in trace.assistant_messages:
            calls = message.tool_calls or []
            actions += [ExportedAction(tool=call.name, arguments=call.arguments) for call in calls]
            if not calls:
                actions.append(ExportedAction(text=str(message.content or "")))
        return await replay_export(EXPORT, self.data.task, actions)


class ExportedConfig(vf.TasksetConfig):
    """Configuration of the taskset."""

    task: ExportedTaskConfig = ExportedTaskConfig()


class ExportedTaskset(vf.Taskset[ExportedTask, ExportedConfig]):
    """Tasks of the exported environment."""

    def load(self) -> Iterable[ExportedTask]:
        for index, one in enumerate(EXPORT.tasks):
            messages = [message.to_openai() for message in one.opening]
            data = ExportedTaskData(idx=index, task=index, name=one.task.id, prompt=messages)
            yield ExportedTask(data, self.config.task)
