"""How does a recipe become things that run? Every part is looked up, checked and made before anything is sampled."""

from whetstone.assembly.assembly import Assembly, assemble, judged_parts
from whetstone.assembly.column_requirements import PROVIDERS
from whetstone.assembly.preflight import preflight

__all__ = ["PROVIDERS", "Assembly", "assemble", "judged_parts", "preflight"]
