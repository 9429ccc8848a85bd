"""Two worlds of the package `openenv-core`: sums with tools, and code that is to have as many lines as asked for."""

from uuid import uuid4

from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Sums(MCPEnvironment):
    """`submit` of the right sum is worth 1 and ends the episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("sums")

        @server.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @server.tool
        def submit(answer: int) -> str:
            """Give the answer."""
            self.given = answer
            return "thank you"

        super().__init__(server)
        self.given, self.right, self._state = None, 0, State(episode_id=str(uuid4()), step_count=0)

    def reset(self, seed=None, episode_id=None, a=0, b=0, **kwargs):
        self.given, self.right = None, a + b
        self._state = State(episode_id=str(uuid4()), step_count=0)
        return Observation(done=False, reward=0.0)

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation(done=False, reward=0.0)

    async def step_async(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        shown = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        if self.given is not None:
            shown.reward, shown.done = float(self.given == self.right), True
        return shown

    @property
    def state(self):
        return self._state


class CodeAction(Action):
    code: str


class Lines(Observation):
    lines: int = 0


class CountedLines(Environment):
    """Code of as many lines as asked for is worth 1; more than a hundred raises."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.wanted, self._state = 0, State(episode_id=str(uuid4()), step_count=0)

    def reset(self, seed=None, episode_id=None, lines=0, **kwargs):
        self.wanted = lines
        return Lines(lines=lines, done=False, reward=0.0)

    def step(self, action, timeout_s=None, **kwargs):
        lines = action.code.count("\n") + 1
        if lines > 100:
            raise ValueError("that is too long")
        return Lines(lines=lines, done=lines == self.wanted, reward=float(lines == self.wanted))

    @property
    def state(self):
        return self._state


tools = create_app(Sums, CallToolAction, CallToolObservation, env_name="sums", max_concurrent_envs=8)
code = create_app(CountedLines, CodeAction, Lines, env_name="lines", max_concurrent_envs=8)
