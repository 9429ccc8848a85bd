"""How does a person speak with a policy that has tools? His line, its calls with their results, its answer; and again.

The environment is the recipe's, begun once with the first line as its task's prompt. An action that calls nothing is an
answer and goes to the person; the environment never sees it.

Easy to get wrong: what the policy said goes on as the tokens it sampled, as in an episode, not as text read back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from whetstone.chat import Chat, Context, Message, ToolSpec, user
from whetstone.environments import Environment
from whetstone.errors import PromptTooLong
from whetstone.inference import Engine, GenerateRequest, Sampling
from whetstone.rollout.episode_inputs import Limits
from whetstone.seeding import derive_seed
from whetstone.tools.threads import call_user_function
from whetstone.trajectory import Task

_EPISODE = "conversation"


class Conversation:
    """One conversation.

    Args:
        task: Whose world the tools are in; its prompt is not asked.
        sampling: `stop_ids` and `seed` are filled in for each turn.
        limits: `max_turns` for each line.
    """

    def __init__(
        self, environment: Environment, engine: Engine, chat: Chat, *, task: Task, sampling: Sampling, limits: Limits,
        seed: int,
    ) -> None:  # fmt: skip
        self._environment, self._engine, self._chat = environment, engine, chat
        self._task, self._sampling, self._limits, self._seed = task, sampling, limits, seed
        self._context: Context | None = None
        self._said: Sequence[int] = ()
        """[T] what the policy sampled last."""
        self._tools: Sequence[ToolSpec] = ()
        self._turn = 0

    async def say(self, line: str) -> AsyncIterator[Message]:
        """What the policy says and calls, and what its tools answer, until it answers without a call.

        Raises:
            PromptTooLong: The conversation leaves no room in the model's context.
        """
        context = await self._asked(line)
        for _ in range(self._limits.max_turns):
            if len(context.ids) >= self._limits.context_length:
                raise PromptTooLong(
                    f"the conversation fills the model's context of {self._limits.context_length:,} tokens"
                )
            seed = derive_seed(self._seed, _EPISODE, self._turn)
            sampling = replace(self._sampling, stop_ids=self._chat.stop_ids, seed=seed)
            drawn = await self._engine.generate(GenerateRequest(context.tokens, sampling, _EPISODE))
            action = self._chat.read(drawn.tokens, self._tools, turn=self._turn)
            self._context, self._said, self._turn = context, drawn.tokens, self._turn + 1
            yield action
            if not action.tool_calls and not action.malformed:
                return
            result = await call_user_function(self._environment.step, action)
            for message in result.observation.messages:
                yield message
            context = self._chat.extend(context, drawn.tokens, result.observation.messages)
            self._context, self._said = context, ()
            if result.ended is not None:
                return

    async def close(self) -> None:
        """Let go of the environment."""
        self._engine.forget(_EPISODE)
        await call_user_function(self._environment.close)

    async def _asked(self, line: str) -> Context:
        """Everything up to the line that was just said."""
        if self._context is not None:
            return self._chat.extend(self._context, self._said, [user(line)])
        task = replace(self._task, prompt=line)
        opened = await call_user_function(self._environment.reset, task, seed=self._seed)
        self._tools = opened.tools
        return self._chat.open(opened.messages, opened.tools)
