"""Tool server of an exported environment: one episode per process."""

import asyncio
import inspect
from pathlib import Path
from typing import Annotated, Any

import verifiers.v1 as vf
from pydantic import Field

from whetstone.chat import ToolSpec
from whetstone.environments.exchange import ExportedEpisode, read_export

EXPORT = read_export(Path(__file__).parents[1] / "environment.json")


class ExportedToolsetConfig(vf.ToolsetConfig):
    """Configuration of the tool server."""


class ExportedToolset(vf.Toolset[ExportedToolsetConfig, vf.State]):
    """Tools of one episode."""

    TOOL_PREFIX = None

    async def setup_task(self, task: Any) -> None:
        """Start the episode of a task."""
        self.episode = ExportedEpisode(EXPORT, task.task)
        self.lock = asyncio.Lock()
        await self.episode.start()

    def register(self, mcp: Any) -> None:
        """Register the tools of the episode with their schemas."""
        for spec in self.episode.tools:
            mcp.add_tool(self.make_function(spec), name=spec.name, description=spec.description)

    def make_function(self, spec: ToolSpec) -> Any:
        """Return a function whose signature has the schema of a tool."""

        async def call(**arguments: Any) -> str:
            sent = {name: value for name, value in arguments.items() if value is not None}
            async with self.lock:
                return (await self.episode.call_tool(spec.name, sent)).text

        required = spec.parameters.get("required", ())
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[Any, Field(json_schema_extra=dict(schema))],
                default=inspect.Parameter.empty if name in required else None,
            )
            for name, schema in spec.parameters.get("properties", {}).items()
        ]
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            sorted(parameters, key=lambda one: one.default is None), return_annotation=str
        )
        call.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": str}
        return call


if __name__ == "__main__":
    ExportedToolset.run()
