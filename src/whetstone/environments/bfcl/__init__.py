"""Conversations of the Berkeley function-calling leaderboard, over the simulated services of its package."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.environments.bfcl.conversation import Conversation
    from whetstone.environments.bfcl.memory import Memory
    from whetstone.environments.bfcl.memory_tasks import MemoryTasks
    from whetstone.environments.bfcl.tasks import ConversationTasks

__getattr__, __dir__ = window(__name__)

__all__ = ["Conversation", "ConversationTasks", "Memory", "MemoryTasks"]
