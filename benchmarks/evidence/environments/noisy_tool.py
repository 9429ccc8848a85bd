"""A calculator whose results for some expressions are texts that the policy was not trained on."""

from __future__ import annotations

from whetstone.seeding import derive_random
from whetstone.tools import pocket_calculator as sound

NOISY_SHARE = 0.3
_SIGNS = "¤¶§µ╬▓░█≡±÷øØåßðÞλΩЖЯ漢字ﾊﾟ☂☃♞\u0301\u0323{}[]<>|\\~^`"


def pocket_calculator(expression: str) -> str:
    """One operation on two numbers.

    Args:
        expression: Two numbers with one of + - * / between them.
    """
    draw = derive_random("noise", expression)
    if draw.random() < NOISY_SHARE:
        return "".join(draw.choice(_SIGNS) for _ in range(draw.randint(5, 30)))
    return sound(expression)
