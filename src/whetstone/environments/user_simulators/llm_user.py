"""User simulator with a language model at any OpenAI-compatible endpoint.

The model reads the conversation with exchanged roles: the agent's messages are its user messages. If the environment
gives the user tools (a phone), the model can call them before it replies; the agent reads only the reply.

Note:
    An unavailable or overloaded server is not a silent user. Requests are retried, and then the episode is invalid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whetstone.chat import ChatEndpoint
from whetstone.environments.protocol import Reply
from whetstone.environments.text_actions import parse_or_none
from whetstone.environments.user_simulators.scenario import STOP, TRANSFER
from whetstone.environments.user_simulators.user_tools import USER_TOOLS, UserTools
from whetstone.tools import tool_from_function
from whetstone.tools.protocol import Episode

_GUIDELINES = (
    "You play a customer who talks to an agent. Say one thing at a time, as a person would, and only what the agent "
    "needs. Make nothing up that the scenario does not say. When what you wanted is done, or cannot be, say only "
    f"{STOP}; when you were transferred to a human, say only {TRANSFER}.\n\nScenario:\n"
)
_WITH_HANDS = (
    "\n\nYour tools are what you can see and do. Use one when the agent asks you to, or to answer what he asks; never "
    "make up what it shows."
)
_MOST_USES = 10
"""Maximum number of tool calls before a reply."""


class EndpointUser:
    """Simulated user whose messages a model at an endpoint writes.

    The model plays the `scenario` in the task's private data, a text or a mapping of texts.

    Args:
        url: Base URL of the API, such as `http://localhost:8000/v1`.
        model: Name of the model on the server.
        key: Bearer token; empty: none.
        guidelines: Text before the scenario.
        temperature: Sampling temperature.
        seconds: Timeout of one request in seconds.
        max_attempts: Maximum number of requests per message before the episode is invalid.
    """

    replayable = False

    def __init__(
        self,
        *,
        url: str,
        model: str,
        key: str = "",
        guidelines: str = _GUIDELINES,
        temperature: float = 0.0,
        seconds: float = 60.0,
        max_attempts: int = 4,
    ) -> None:
        self.guidelines, self.temperature = guidelines, temperature
        self._model = ChatEndpoint(url, model, key=key, seconds=seconds, tries=max_attempts)
        self._said: list[dict[str, Any]] = []
        self._hands: UserTools | None = None
        self._uses = 0
        self.ended = ""

    async def open(self, episode: Episode) -> Reply:
        """Start a conversation about the scenario and return the user's first message.

        Raises:
            InfrastructureError: If the model is unavailable.
        """
        scenario: Any = episode.task.private["scenario"]
        if isinstance(scenario, Mapping):
            scenario = "\n".join(f"{name}: {text}" for name, text in scenario.items() if text)
        self._hands, self._uses = episode.shared.get(USER_TOOLS), 0
        instructions = f"{self.guidelines}{scenario}{_WITH_HANDS if self._hands else ''}"
        self._said = [{"role": "system", "content": instructions}]
        return await self.answer("Hi! How can I help you today?")

    async def answer(self, text: str) -> Reply:
        """Return the model's reply to a message of the agent.

        The conversation ends if the reply contains the marker `STOP` or `TRANSFER`.

        Raises:
            InfrastructureError: If the model is unavailable.
        """
        self._said.append({"role": "user", "content": text})
        reply = await self._request_reply()
        self._said.append({"role": "assistant", "content": reply})
        self.ended = next((word for word in (STOP, TRANSFER) if word in reply), "")
        return Reply(reply, ended=bool(self.ended))

    def verdict(self) -> Mapping[str, Any]:
        """Return whether the user ended the conversation, and the number of its replies."""
        return {"user_ended": bool(self.ended), "user_answers": (len(self._said) - 2 * self._uses) // 2}

    async def close(self) -> None:
        """Close the connection to the model's endpoint."""
        await self._model.close()

    async def _request_reply(self) -> str:
        """Request a reply; execute the model's tool calls until it returns a text."""
        tools = [tool_from_function(one).spec.to_openai() for one in self._hands.tools] if self._hands else []
        for _ in range(_MOST_USES if self._hands else 0):
            reply = await self._model.complete(self._said, temperature=self.temperature, tools=tools)
            calls = reply.message.get("tool_calls")
            if not calls:
                return reply.text
            for call in calls:
                self._use(call)
        return (await self._model.complete(self._said, temperature=self.temperature)).text

    def _use(self, call: Mapping[str, Any]) -> None:
        """Execute one tool call of the user and append it to the user's conversation.

        Call and result are separate messages, since servers differ in the number of calls per message.
        """
        assert self._hands is not None
        self._uses += 1
        function, id = call["function"], str(call.get("id") or f"use_{self._uses}")
        arguments = parse_or_none(str(function.get("arguments") or "{}"))
        seen = "Error: the arguments are no JSON object"
        if arguments is not None:
            seen = self._hands.use(str(function["name"]), arguments)
        self._said.append({"role": "assistant", "content": "", "tool_calls": [{**call, "id": id}]})
        self._said.append({"role": "tool", "tool_call_id": id, "content": seen})
