"""Interactive conversation with a policy that has tools: the user's line, calls with their results, and the response.

The environment is the recipe's, reset once with the first line as its task's prompt. An action without a call is a
response to the user; the environment does not receive it.

Note:
    As in an episode, the history contains the tokens that the policy sampled, not the text tokenized again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from whetstone.chat import Chat, Context, Message, ToolSpec, user
from whetstone.environments import Environment
from whetstone.errors import PromptTooLong
from whetstone.inference import Engine, GenerateRequest, Sampling
from whetstone.rollout.episode_inputs import EpisodeLimits
from whetstone.seeding import derive_seed
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import Task

_EPISODE = "conversation"


class ChatSession:
    """Interactive session of a user with a policy that has tools; used by `whetstone chat`.

    Args:
        environment: Environment that executes the tool calls.
        engine: Engine that samples the policy.
        chat: Renders messages to tokens and parses tool calls.
        task: Task that sets up the environment of the tools; its prompt is replaced by the first line of the user.
        sampling: Sampling parameters; `stop_ids` and `seed` are set for each turn.
        limits: Limits of an episode; `max_turns` applies to each line of the user.
        seed: Random seed of the session.
    """

    def __init__(
        self, environment: Environment, engine: Engine, chat: Chat, *, task: Task, sampling: Sampling,
        limits: EpisodeLimits, seed: int,
    ) -> None:  # fmt: skip
        self._environment, self._engine, self._chat = environment, engine, chat
        self._task, self._sampling, self._limits, self._seed = task, sampling, limits, seed
        self._context: Context | None = None
        self._said: Sequence[int] = ()
        """[T] Tokens that the policy sampled last."""
        self._tools: Sequence[ToolSpec] = ()
        self._turn = 0

    async def say(self, line: str) -> AsyncIterator[Message]:
        """Send a line of the user and yield the messages of the policy and its tools as they arrive.

        The last message is the policy's response without a tool call, unless `max_turns` is reached or the environment
        ends the episode.

        Raises:
            PromptTooLong: If the conversation leaves no room for a response in the model's context.
        """
        context = await self._extend_context(line)
        for _ in range(self._limits.max_turns):
            if len(context.ids) >= self._limits.context_length:
                raise PromptTooLong(
                    f"the conversation fills the model's context of {self._limits.context_length:,} tokens; start again"
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
        """Release the engine's KV cache of the session and close the environment."""
        self._engine.forget(_EPISODE)
        await call_user_function(self._environment.close)

    async def _extend_context(self, line: str) -> Context:
        """Append a line of the user to the context; the first line resets the environment."""
        if self._context is not None:
            return self._chat.extend(self._context, self._said, [user(line)])
        task = replace(self._task, prompt=line)
        opened = await call_user_function(self._environment.reset, task, seed=self._seed)
        self._tools = opened.tools
        return self._chat.open(opened.messages, opened.tools)
