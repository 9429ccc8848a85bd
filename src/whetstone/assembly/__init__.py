"""How does a recipe become things that run? Every part is looked up, checked and made before anything is sampled."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.assembly.assembly import Assembly, assemble, judged_parts
    from whetstone.assembly.environment import gated, run_policy
    from whetstone.assembly.own_data import with_learning
    from whetstone.assembly.preflight_checks import engine_preflight, preflight
    from whetstone.assembly.stored_data import choice_of

__getattr__, __dir__ = window(__name__)

__all__ = [
    "Assembly", "assemble", "choice_of", "engine_preflight", "gated", "judged_parts", "preflight",
    "run_policy", "with_learning",
]  # fmt: skip
