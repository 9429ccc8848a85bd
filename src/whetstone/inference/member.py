"""`Member`: a model of a run with its chat format, device, engine and learner, each created once.

Members are the policy, the models of `policies`, reference and teacher models, implicit process reward models, learned
rewards, local judges, models of `models`, and models in seats. A critic is a head on the model of a member and part of
its policy.
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
"""Key of the other members' states in the state of a learner, and name of their folder in a checkpoint."""


class MemberState(Protocol):
    """Function that returns the policy and learner state of a member, from memory or from a checkpoint."""

    def __call__(self, *, base_path: Path | None = None) -> tuple[Policy, dict[str, Any]]:
        """Return the policy and the state of its learner.

        Args:
            base_path: Folder of the base model of LoRA adapters, if it was moved.
        """
        ...


class Member:
    """Model of a run. Policy, chat template, engine and learner are created on first use.

    Created by `assembly` from the recipe, and by `frozen_member`.

    Args:
        name: Name in messages and in checkpoints.
        load: Returns the policy.
        path: Model folder that the recipe names; None: the model is randomly initialized.
        device: Device of the forward passes; None: that of the weights.
        chat: Returns the chat template of a policy; None: `chat` must not be used.
        engine: Returns an engine for a policy; None: the member is not sampled.
        learner: Returns the learner of a policy, an object with `state_dict` and `load_state_dict`; None: the member is
            frozen.
        is_trained: Whether the learner trains the model; False: it only computes scores.
        is_stored: Whether checkpoints contain the weights.
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
        """Model and tokenizer of the member, loaded on first use."""
        return self._load()

    @cached_property
    def chat(self) -> Chat:
        """Chat template of the member's model."""
        assert self._make_chat is not None
        return self._make_chat(self.policy)

    @property
    def engine(self) -> Engine:
        """Engine that samples from the member's model, created on first use.

        An engine belongs to the event loop that first requests it; another event loop gets another engine.
        """
        assert self._make_engine is not None
        loop = asyncio._get_running_loop()
        if self._engine is None or (self._loop is not None and loop is not None and self._loop is not loop):
            self._engine, self._loop = self._make_engine(self.policy), loop
        self._loop = self._loop or loop
        return self._engine

    @cached_property
    def learner(self) -> Any:
        """Learner that trains the member's model, created on first use."""
        assert self._make_learner is not None
        return self._make_learner(self.policy)

    def state(self, *, base_path: Path | None = None) -> tuple[Policy, dict[str, Any]]:
        """Return the policy and the state of its learner; see `MemberState`."""
        return self.policy, self.learner.state_dict() if self.is_trained else {}

    def load_state(self, state: MemberState, *, learner: bool = True) -> None:
        """Load weights, critic and learner state from another member or from a checkpoint.

        Args:
            state: Returns the policy and the learner state to load.
            learner: Whether to load the learner state as well.
        """
        policy, learned = state(base_path=self.path)
        self.policy.model.load_state_dict(policy.model.state_dict())
        if self.policy.critic is not None and policy.critic is not None:
            self.policy.critic.load_state_dict(policy.critic.state_dict())
        if self.is_trained and learner:
            self.learner.load_state_dict(learned)

    async def close(self) -> None:
        """Close the engine, if there is one that belongs to the running event loop."""
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
    """Create a member that is never trained, with a local engine.

    Members with the same folder and device share one loaded model.

    Args:
        name: Name in messages.
        path: Model folder or Hub name; see `load_frozen`.
        trust_remote_code: Whether Python code of the model folder may run.
        device: Device of the weights.
        dtype: Precision of the weights; None: float32.
        chat: Returns the chat template of the policy; see `Member`.
        max_sequences: Maximum number of sequences that the engine samples concurrently.
    """

    def load() -> Policy:
        policy = load_frozen(path, trust_remote_code=trust_remote_code, device=device)
        return policy if dtype is None else replace(policy, model=clone_trainable(policy.model, dtype=dtype))

    return Member(name, load, chat=chat, engine=lambda policy: local(policy=policy, max_sequences=max_sequences))


def member_states(members: Mapping[str, Member]) -> dict[str, MemberState]:
    """Return the state functions of the members that a checkpoint stores, by name."""
    return {name: member.state for name, member in members.items() if member.is_stored}


def load_member_states(
    members: Mapping[str, Member], state: Mapping[str, Any] | None, *, learners: bool = True
) -> None:
    """Load the states of members from the state of a learner.

    Members without a stored state keep their weights.

    Args:
        members: Members by name.
        state: State of a learner, with the member states under `MEMBERS`; None: nothing is loaded.
        learners: Whether to load the states of their learners as well.
    """
    for name, each in (state or {}).get(MEMBERS, {}).items():
        if name in members:
            members[name].load_state(each, learner=learners)
