"""How does a recipe become things that run? Every part is looked up, checked and made before anything is sampled."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.assembly.assembly import Assembly, assemble, judged_parts
    from whetstone.assembly.preflight_checks import engine_preflight, preflight

__getattr__, __dir__ = window(__name__)

__all__ = ["Assembly", "assemble", "engine_preflight", "judged_parts", "preflight"]
