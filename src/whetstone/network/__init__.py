"""Servers of others: which may be reached, and how much of what they say is taken."""

from whetstone.network.addresses import NotPublicError, PublicTransport, is_public
from whetstone.network.answers import MOST_BYTES, Answer, asked, no_more_than
from whetstone.network.certificates import trusted

__all__ = ["MOST_BYTES", "Answer", "NotPublicError", "PublicTransport", "asked", "is_public", "no_more_than", "trusted"]
