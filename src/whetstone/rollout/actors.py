"""Actors of an episode: the policy through an engine, an expert, or a model at an endpoint.

All use the same episode loop, so a demonstration is a trajectory like any other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from whetstone.chat import Chat, ChatEndpoint, Message
from whetstone.errors import EpisodeError, InfrastructureError
from whetstone.inference import Engine, GenerateRequest, Generation, Sampling
from whetstone.rollout.action_masks.token_trie import TokenTrie
from whetstone.rollout.protocol import ALLOWED_LOGPROB, Action, ActorInput, AllowedActions
from whetstone.tasks import Expert
from whetstone.tools import FrozenModel
from whetstone.tools.thread_runner import run_in_turn
from whetstone.trajectory import Author, Provenance, Tokens, TokenSequence
from whetstone.waiting import finish_within

_PROBE, _PROBE_SECONDS = "probe", 10.0
"""The episode of the request that shows whether an engine answers, and its deadline."""


@dataclass(frozen=True, slots=True)
class PolicyActor:
    """Actor that samples each turn from an inference engine: the policy in training, or a member of `policies`."""

    engine: Engine
    sampling: Sampling
    """Sampling parameters; `stop_ids` and `seed` are set for each turn."""
    stop_ids: frozenset[int]
    member: str = ""
    """Name of the member of `policies` that the engine samples from."""
    owner: ClassVar = "the engine"

    async def act(self, moment: ActorInput) -> Action:
        """Sample the action of one turn with the seed of the input; greedily if the input asks for it."""
        sampling = replace(self.sampling, stop_ids=self.stop_ids, seed=moment.seed)
        if moment.greedy:
            sampling = replace(sampling, temperature=0.0)
        prompt = moment.context.tokens + moment.prefix.sequence
        if moment.allowed is not None:
            sampling = replace(sampling, constraint=_constraint_of(moment.allowed, sampling))
        drawn = await self.engine.generate(GenerateRequest(prompt, sampling, moment.episode, moment.sampled_spans))
        if moment.allowed is not None:
            tokens = mark_masked(drawn, trained=moment.allowed.trained, is_plain=_is_plain(sampling))
            return Action(tokens, drawn.finish == "stop", drawn.queue_seconds)
        tokens = replace(drawn, logprobs=_comparable(drawn, sampling)).to_tokens()
        return Action(tokens, drawn.finish == "stop", drawn.queue_seconds)

    def leave(self, episode: str) -> None:
        """Release the KV cache that the engine stores for an episode."""
        self.engine.forget(episode)

    async def is_answering(self) -> bool:
        """Check the health of the engine: return whether it samples one token within 10 seconds.

        Called when the deadline of an episode passes, to distinguish a long response of the policy from a failed
        engine.
        """
        prompt = TokenSequence((min(self.stop_ids, default=0),))
        probe = self.engine.generate(GenerateRequest(prompt, Sampling(1), _PROBE))
        try:
            await finish_within(_PROBE_SECONDS, probe, owner=self.owner)
        except Exception:  # whatever it is, this is no answer
            return False
        finally:
            self.engine.forget(_PROBE)
        return True


def _constraint_of(allowed: AllowedActions, sampling: Sampling) -> TokenTrie:
    """Return the constraint of a masked turn.

    Raises:
        EpisodeError: If no allowed action fits into a turn.
    """
    fitting = [each for each in allowed.sequences if len(each) <= sampling.max_new_tokens]
    if not fitting:
        raise EpisodeError(
            f"action mask: no allowed action has at most {sampling.max_new_tokens} tokens; raise rollout.max_new_tokens"
        )
    return TokenTrie(fitting)


def _is_plain(sampling: Sampling) -> bool:
    return sampling.temperature == 1 and not (sampling.top_k or sampling.top_p < 1 or sampling.min_p > 0)


def mark_masked(generation: Generation, *, trained: bool, is_plain: bool) -> Tokens:
    """Return the tokens of a masked turn: sampled, but not from the policy's distribution (`Author.INSERTED`).

    The log-prob of a token is that of the distribution that was sampled. Its difference to the log-prob of the policy
    is the log-probability of all allowed tokens, which is stored as `ALLOWED_LOGPROB`.

    Args:
        generation: Sampled tokens.
        trained: Whether the tokens are trained; otherwise they have no log-prob.
        is_plain: Whether temperature is 1 without truncation; otherwise the probability of allowed tokens is unknown.
    """
    known = is_plain and len(generation.model_logprobs) == len(generation.tokens)
    allowed = (
        tuple(model - own for model, own in zip(generation.model_logprobs, generation.logprobs, strict=True))
        if known
        else (math.nan,) * len(generation.tokens)
    )
    return replace(
        generation.to_tokens(),
        authors=(Author.INSERTED,) * len(generation.tokens),
        logprobs=generation.logprobs if trained else (math.nan,) * len(generation.tokens),
        measured={**generation.measured, ALLOWED_LOGPROB: allowed},
    )


def _comparable(drawn: Generation, sampling: Sampling) -> tuple[float, ...]:
    """Return [T] log-probs before top-k, top-p and min-p truncation, which the learner's log-probs are compared with.

    Raises:
        InfrastructureError: If sampling truncates the distribution and the engine returns no untruncated log-probs.
    """
    if sampling.temperature != 1 or not (sampling.top_k or sampling.top_p < 1 or sampling.min_p > 0):
        return drawn.logprobs
    if len(drawn.model_logprobs) != len(drawn.tokens):
        raise InfrastructureError(
            "the engine returns no log-probs before truncation; remove top_k, top_p and min_p, or choose another engine"
        )
    return drawn.model_logprobs


@dataclass(frozen=True, slots=True)
class FrozenActor:
    """Actor that samples from a frozen model, which plays a role of a game instead of the policy.

    Its tokens have the author `Author.OTHER_AGENT` and are not trained.
    """

    model: PolicyActor
    owner: ClassVar = "the model in its role"

    async def act(self, moment: ActorInput) -> Action:
        """Sample the action of one turn; its tokens are marked as those of another agent."""
        action = await self.model.act(replace(moment, allowed=None))
        return replace(action, tokens=Tokens.from_ids(action.tokens.ids, Author.OTHER_AGENT))

    def leave(self, episode: str) -> None:
        """Release the KV cache that the model's engine stores for an episode."""
        self.model.leave(episode)


@dataclass(frozen=True, slots=True)
class ModelActor:
    """Actor that requests messages from one of the recipe's `models`, which plays a role of a game.

    Its messages are tokenized with the policy's tokenizer, have the author `Author.OTHER_AGENT` and are not trained.
    """

    model: FrozenModel
    chat: Chat
    owner: ClassVar = "the model in its role"

    async def act(self, moment: ActorInput) -> Action:
        """Request the next message from the model.

        Tool calls get ids that are unique in the episode.
        """
        response = await self.model.answer(moment.conversation, tools=moment.tools, seed=moment.seed)
        calls = tuple(replace(call, id=f"call_{moment.turn}_{k}") for k, call in enumerate(response.tool_calls))
        message = replace(response, tool_calls=calls)
        return Action(Tokens.from_ids(self.chat.write(message, moment.tools), Author.OTHER_AGENT), message=message)

    def leave(self, episode: str) -> None:
        """Do nothing: the model stores no data per episode."""


@dataclass(frozen=True, slots=True)
class ExpertActor:
    """Actor that plays the messages of a task source's expert, as the tokens that the policy would have to sample."""

    expert: Expert
    chat: Chat
    owner: ClassVar = "the expert"
    provenance: ClassVar = Provenance.DEMONSTRATED

    async def act(self, moment: ActorInput) -> Action:
        """Return the expert's message for the conversation so far, as tokens with the author `Author.EXPERT`."""
        demonstrate = self.expert.demonstrate
        message: Message = await run_in_turn(demonstrate, moment.task, moment.conversation, moment.tools)
        return Action(Tokens.from_ids(self.chat.write(message, moment.tools), Author.EXPERT))

    def leave(self, episode: str) -> None:
        """Do nothing: an expert stores no data per episode."""


@dataclass(frozen=True, slots=True)
class EndpointActor:
    """Actor that requests messages from an OpenAI-compatible endpoint, for evaluation only.

    The server renders messages and tools with its own chat template. Token counts are those of the recipe's tokenizer.
    """

    endpoint: ChatEndpoint
    chat: Chat
    temperature: float
    max_new_tokens: int
    owner: ClassVar = "the model at its endpoint"

    async def act(self, moment: ActorInput) -> Action:
        """Request the next message from the endpoint.

        Tool calls get ids that are unique in the episode.

        Raises:
            InfrastructureError: If the request fails, or the response is not a valid assistant message.
        """
        options: dict[str, Any] = {
            "temperature": self.temperature,
            "max_tokens": self.max_new_tokens,
            "seed": moment.seed % 2**31,
        }
        if moment.tools:
            options["tools"] = [tool.to_openai() for tool in moment.tools]
        completion = await self.endpoint.complete([m.to_openai() for m in moment.conversation], **options)
        try:
            read = Message.from_openai({**completion.message, "role": "assistant"})
        except ValueError as error:
            raise InfrastructureError(f"the model at {self.endpoint.url} returned no valid message: {error}") from None
        calls = tuple(replace(call, id=f"call_{moment.turn}_{k}") for k, call in enumerate(read.tool_calls))
        message = replace(read, tool_calls=calls, tool_call_id=None)
        ids = self.chat.write(message, moment.tools)
        return Action(Tokens.from_ids(ids, Author.OTHER_AGENT), completion.finish != "length", message=message)

    def leave(self, episode: str) -> None:
        """Do nothing: the endpoint stores no data per episode."""
