"""OpenAI- and Anthropic-compatible server for a policy, which records every request as a trajectory."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.chat.api.requests import RefusedError as RefusedError
    from whetstone.serving.api_keys import Key as Key, Keys as Keys, create_key as create_key
    from whetstone.serving.app import Server as Server, build_serving_app as build_serving_app
    from whetstone.serving.episodes import EpisodeRegistry as EpisodeRegistry
    from whetstone.serving.generate import CompletionService as CompletionService

__getattr__, __dir__ = export_lazily(__name__)
