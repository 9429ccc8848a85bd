"""A user played by a model behind any OpenAI-compatible address.

He reads the conversation with the roles exchanged: what the agent said is what the user answers. Where the world gives
him tools of his own (a phone), he uses them before he answers; the agent hears only what he says.

Easy to get wrong: a server that is down or too busy is no user who says nothing. It is asked again, and then the
episode is invalid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whetstone.chat import ChatEndpoint
from whetstone.environments.commands import arguments_of
from whetstone.environments.protocol import Reply
from whetstone.environments.users.hands import HANDS, Hands
from whetstone.environments.users.scenario import STOP, TRANSFER
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
"""Of his tools before he has to answer."""


class EndpointUser:
    """Plays `scenario` (a text, or a mapping of texts) in the task's private data.

    Args:
        url: Where the API begins, such as `http://localhost:8000/v1`.
        model: Its name there.
        key: Sent as a bearer token; empty: none.
        guidelines: What stands in front of the scenario.
        temperature: Of his words.
        seconds: How long one answer may take.
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
        self._hands: Hands | None = None
        self._uses = 0
        self.ended = ""

    async def open(self, episode: Episode) -> Reply:
        """His first words."""
        scenario: Any = episode.task.private["scenario"]
        if isinstance(scenario, Mapping):
            scenario = "\n".join(f"{name}: {text}" for name, text in scenario.items() if text)
        self._hands, self._uses = episode.shared.get(HANDS), 0
        told = f"{self.guidelines}{scenario}{_WITH_HANDS if self._hands else ''}"
        self._said = [{"role": "system", "content": told}]
        return await self.answer("Hi! How can I help you today?")

    async def answer(self, text: str) -> Reply:
        """What the model says.

        Raises:
            InfrastructureError: It could not be asked.
        """
        self._said.append({"role": "user", "content": text})
        reply = await self._asked()
        self._said.append({"role": "assistant", "content": reply})
        self.ended = next((word for word in (STOP, TRANSFER) if word in reply), "")
        return Reply(reply, ended=bool(self.ended))

    def verdict(self) -> Mapping[str, Any]:
        """Whether he ended the conversation."""
        return {"user_ended": bool(self.ended), "user_answers": (len(self._said) - 2 * self._uses) // 2}

    async def close(self) -> None:
        """Let go of the connection."""
        await self._model.close()

    async def _asked(self) -> str:
        tools = [tool_from_function(one).spec.to_openai() for one in self._hands.tools] if self._hands else []
        for _ in range(_MOST_USES if self._hands else 0):
            said = await self._model.complete(self._said, temperature=self.temperature, tools=tools)
            calls = said.message.get("tool_calls")
            if not calls:
                return said.text
            for call in calls:
                self._use(call)
        return (await self._model.complete(self._said, temperature=self.temperature)).text

    def _use(self, call: Mapping[str, Any]) -> None:
        """One call of his, and what he sees, each in a message: servers differ in how many they take in one."""
        assert self._hands is not None
        self._uses += 1
        function, id = call["function"], str(call.get("id") or f"use_{self._uses}")
        arguments = arguments_of(str(function.get("arguments") or "{}"))
        seen = "Error: the arguments are no JSON object"
        if arguments is not None:
            seen = self._hands.use(str(function["name"]), arguments)
        self._said.append({"role": "assistant", "content": "", "tool_calls": [{**call, "id": id}]})
        self._said.append({"role": "tool", "tool_call_id": id, "content": seen})
