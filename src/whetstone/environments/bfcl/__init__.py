"""Environments of the Berkeley Function Calling Leaderboard (BFCL): conversations over the simulated services of its
package, and agent memory.
"""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.environments.bfcl.bfcl_conversation import BfclConversation as BfclConversation
    from whetstone.environments.bfcl.memory import Memory as Memory
    from whetstone.environments.bfcl.memory_tasks import MemoryTasks as MemoryTasks
    from whetstone.environments.bfcl.bfcl_tasks import ConversationTasks as ConversationTasks

__getattr__, __dir__ = export_lazily(__name__)
