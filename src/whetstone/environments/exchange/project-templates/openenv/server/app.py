"""OpenEnv server of an exported environment."""

from pathlib import Path
from typing import Any
from uuid import uuid4

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
    ToolError,
    ToolErrorType,
)
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from whetstone.environments.exchange import ExportedAction, ExportedEpisode, list_offered_tools, read_export

EXPORT = read_export(Path(__file__).parents[1] / "environment.json")
HAS_TOOLS = bool(EXPORT.tasks[0].tools)


class TextAction(Action):
    """Message of the agent."""

    message: str = Field(description="Message of the agent")


class TextObservation(Observation):
    """Text that the agent reads."""

    text: str = Field(description="Text that the agent reads")


class ToolClient:
    """Tools of one environment, for requests of the Model Context Protocol."""

    def __init__(self, environment: "ExportedEnvironment") -> None:
        self.environment = environment

    async def __aenter__(self) -> "ToolClient":
        return self

    async def __aexit__(self, *error: Any) -> None:
        pass

    def is_connected(self) -> bool:
        return True

    async def list_tools(self) -> list[Tool]:
        return self.environment.list_tools()

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        return await self.environment.step_async(CallToolAction(tool_name=name, arguments=arguments))


class ExportedEnvironment(Environment):
    """Episodes of the exported environment."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.episode: ExportedEpisode | None = None
        self.steps = State(episode_id=None, step_count=0)
        if HAS_TOOLS:
            self.mcp_client = ToolClient(self)

    def list_tools(self) -> list[Tool]:
        offered = list_offered_tools(self.episode.tools if self.episode else EXPORT.tasks[0].tools)
        return [
            Tool(name=tool.name, description=tool.description, input_schema=dict(tool.parameters)) for tool in offered
        ]

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        await self.close_episode()
        self.episode = ExportedEpisode(EXPORT, int(options.get("task", seed or 0)))
        self.steps = State(episode_id=episode_id or str(uuid4()), step_count=0)
        text = await self.episode.start()
        if HAS_TOOLS:
            return CallToolObservation(tool_name="reset", result=text)
        return TextObservation(text=text)

    async def step_async(self, action: Action, timeout_s: float | None = None, **options: Any) -> Observation:
        if isinstance(action, ListToolsAction):
            return ListToolsObservation(tools=self.list_tools())
        if self.episode is None:
            raise ValueError("there is no episode; call reset first")
        self.steps.step_count += 1
        if not isinstance(action, CallToolAction):
            result = await self.episode.execute_action(ExportedAction(text=action.message))
            return TextObservation(text=result.text, reward=result.reward, done=result.done)
        result = await self.episode.call_tool(action.tool_name, action.arguments)
        error = ToolError(error_type=ToolErrorType.EXECUTION_ERROR, message=result.text) if result.failed else None
        return CallToolObservation(
            tool_name=action.tool_name,
            result=None if error else result.text,
            error=error,
            reward=result.reward,
            done=result.done,
        )

    async def close_episode(self) -> None:
        episode, self.episode = self.episode, None
        if episode is not None:
            await episode.close()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        raise NotImplementedError("use reset_async")

    def step(self, action: Action, timeout_s: float | None = None, **options: Any) -> Observation:
        raise NotImplementedError("use step_async")

    @property
    def state(self) -> State:
        return self.steps


ACTION, OBSERVATION = (CallToolAction, CallToolObservation) if HAS_TOOLS else (TextAction, TextObservation)
app = create_app(ExportedEnvironment, ACTION, OBSERVATION, env_name=EXPORT.environment, max_concurrent_envs=256)


def main() -> None:
    """Serve the environment on port 8000."""
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
