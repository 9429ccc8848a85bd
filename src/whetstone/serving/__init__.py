"""How do agents that know nothing of Whetstone use a policy? Over the APIs they speak, with every call on record."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.chat.api.asked import RefusedError
    from whetstone.serving.access import Key, Keys, new_key
    from whetstone.serving.app import Server, application
    from whetstone.serving.episodes import Episodes
    from whetstone.serving.speaking import Speaker

__getattr__, __dir__ = window(__name__)

__all__ = ["Episodes", "Key", "Keys", "RefusedError", "Server", "Speaker", "application", "new_key"]
