"""Server of the Tinker API: LoRA training clients and samplers of the public package `tinker` on local models."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.serving.tinker.api_routes import tinker_routes as tinker_routes
    from whetstone.serving.tinker.tinker_service import TinkerService as TinkerService

__getattr__, __dir__ = export_lazily(__name__)
