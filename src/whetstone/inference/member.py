"""`Member`: a model of a run with its chat format, device, engine and learner, each made once.

The policy, the members of `policies`, reference, teacher, implicit PRM, learned rewards, local judges, models of
`models` and models in seats are members. A critic is a head on the model of a member, and is part of its policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from whetstone.chat import Chat
from whetstone.inference.engine_factory import local
from whetstone.inference.protocol import Engine
from whetstone.policies import CPU, Policy, clone_trainable, load_frozen

MEMBERS = "members"
"""Key of the states of other members in the state of a learner, and their folder in a checkpoint."""


class MemberState(Protocol):
    """Function that returns the policy of a member and the state of its learner, from memory or from a checkpoint."""

    def __call__(self, *, base_path: Path | None = None) -> tuple[Policy, dict[str, Any]]:
        """Return policy and state.

        Args:
            base_path: Folder of the base model of adapters, if it was moved.
        """
        ...


class Member:
    """A model in a run. Policy, chat template, engine and learner are made when they are first requested, and kept.

    Args:
        name: Name in messages and in checkpoints.
        load: Function that returns the policy.
        path: Model folder that the recipe names; None: the member is built.
        device: Device that computes the forward passes; None: that of the weights.
        chat: Function that returns the chat template of a policy; None: the member has that of the first one.
        engine: Function that returns an engine for a policy; None: the member is not sampled.
        learner: Function that returns what trains a policy, which has `state_dict` and `load_state_dict`; None: the
            member is frozen.
        is_trained: False if the learner only scores.
        is_stored: A checkpoint has the weights.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], Policy],
        *,
        path: Path | None = None,
        device: torch.device | None = None,
        chat: Callable[[Policy], Chat] | None = None,
        engine: Callable[[Policy], Engine] | None = None,
        learner: Callable[[Policy], Any] | None = None,
        is_trained: bool = True,
        is_stored: bool = False,
    ) -> None:
        self.name, self.path, self.device, self.is_stored = name, path, device, is_stored
        self.is_trained, self.is_sampled = learner is not None and is_trained, engine is not None
        self._load, self._make_chat, self._make_engine, self._make_learner = load, chat, engine, learner
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @cached_property
    def policy(self) -> Policy:
        """Model and tokenizer."""
        return self._load()

    @cached_property
    def chat(self) -> Chat:
        """Chat template of the model."""
        assert self._make_chat is not None
        return self._make_chat(self.policy)

    @property
    def engine(self) -> Engine:
        """Engine that samples from the model.

        An engine belongs to the event loop that first requests it; in another loop there is another one.
        """
        assert self._make_engine is not None
        loop = asyncio._get_running_loop()
        if self._engine is None or (self._loop is not None and loop is not None and self._loop is not loop):
            self._engine, self._loop = self._make_engine(self.policy), loop
        self._loop = self._loop or loop
        return self._engine

    @cached_property
    def learner(self) -> Any:
        """Learner that trains the model."""
        assert self._make_learner is not None
        return self._make_learner(self.policy)

    def state(self, *, base_path: Path | None = None) -> tuple[Policy, dict[str, Any]]:
        """See `MemberState`."""
        return self.policy, self.learner.state_dict() if self.is_trained else {}

    def load_state(self, state: MemberState, *, learner: bool = True) -> None:
        """Load the weights, and by default the state of the learner."""
        policy, learned = state(base_path=self.path)
        self.policy.model.load_state_dict(policy.model.state_dict())
        if self.policy.critic is not None and policy.critic is not None:
            self.policy.critic.load_state_dict(policy.critic.state_dict())
        if self.is_trained and learner:
            self.learner.load_state_dict(learned)

    async def close(self) -> None:
        """Close the engine, if there is one and its event loop is the running one."""
        engine, self._engine = self._engine, None
        if engine is not None and self._loop in (None, asyncio.get_running_loop()):
            await engine.close()


def frozen_member(
    name: str,
    path: Path | str,
    *,
    trust_remote_code: bool = False,
    device: torch.device = CPU,
    dtype: torch.dtype | None = None,
    chat: Callable[[Policy], Chat] | None = None,
    max_sequences: int = 1,
) -> Member:
    """Return a frozen member with a local engine.

    Members with the same folder and device share one loaded model.

    Args:
        name: Name in messages.
        path: Same as for `load_frozen`.
        trust_remote_code: Same as for `load_frozen`.
        device: Same as for `load_frozen`.
        dtype: Precision of the weights; None: float32.
        chat: Same as for `Member`.
        max_sequences: Maximum number of sequences that the engine samples at once.
    """

    def load() -> Policy:
        policy = load_frozen(path, trust_remote_code=trust_remote_code, device=device)
        return policy if dtype is None else replace(policy, model=clone_trainable(policy.model, dtype=dtype))

    return Member(name, load, chat=chat, engine=lambda policy: local(policy=policy, max_sequences=max_sequences))


def member_states(members: Mapping[str, Member]) -> dict[str, MemberState]:
    """Return the state of each member that a checkpoint stores, by name."""
    return {name: member.state for name, member in members.items() if member.is_stored}


def load_member_states(
    members: Mapping[str, Member], state: Mapping[str, Any] | None, *, learners: bool = True
) -> None:
    """Load the states of members from the state of a learner, if it has them.

    Args:
        learners: Load the states of their learners, too, not only the weights.
    """
    for name, each in (state or {}).get(MEMBERS, {}).items():
        if name in members:
            members[name].load_state(each, learner=learners)
