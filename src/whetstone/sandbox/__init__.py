"""Processes that run untrusted code and cannot hurt the machine."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.sandbox.isolation import Isolation, Offer, does_not_hold, find_bwrap, offers
    from whetstone.sandbox.limits import Limits
    from whetstone.sandbox.pool import Sandbox
    from whetstone.sandbox.protocol import Ending, Outcome
    from whetstone.sandbox.session import Session
    from whetstone.sandbox.shared import shared_sandbox

__getattr__, __dir__ = window(__name__)

__all__ = [
    "Ending",
    "Isolation",
    "Limits",
    "Offer",
    "Outcome",
    "Sandbox",
    "Session",
    "does_not_hold",
    "find_bwrap",
    "offers",
    "shared_sandbox",
]
