"""Access to the package `bfcl-eval`: its data, and the services and memories of its conversations.

Other modules of the package are not imported, so that its dependencies are not needed (`pip install --no-deps
bfcl-eval`).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from whetstone.environments.dependencies import Requirement, check_requirements
from whetstone.errors import RecipeError

_FILES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""Module of each service class, and name of the file with its function descriptions."""
_STATELESS = ("MathAPI",)
"""Services without an initial state."""


NEEDS = (Requirement("package", "bfcl_eval", "pip install --no-deps bfcl-eval"),)


def data_folder() -> Path:
    """Return the folder of the questions in the package `bfcl-eval`.

    Raises:
        RecipeError: If the package is not installed; the message has the command.
    """
    check_requirements("BFCL", NEEDS)
    spec = importlib.util.find_spec("bfcl_eval")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "data"


def load_services(names: Sequence[str], configuration: Mapping[str, Any], *, long_context: bool) -> dict[str, Any]:
    """Return new services by name, each in the initial state of a conversation.

    Args:
        names: Class names of the services.
        configuration: Initial state of each service, by name.
        long_context: Load far more data than the conversation needs.

    Raises:
        RecipeError: If the package is not installed, or has no such service.
    """
    data_folder()
    instances = {}
    for name in names:
        if name not in _FILES:
            raise RecipeError(f"BFCL: no service named {name}; services are {', '.join(_FILES)}")
        module = importlib.import_module(f"bfcl_eval.eval_checker.multi_turn_eval.func_source_code.{_FILES[name]}")
        instances[name] = getattr(module, name)()
        if name not in _STATELESS:
            instances[name]._load_scenario(deepcopy(configuration.get(name, {})), long_context=long_context)
    return instances


def service_functions(name: str) -> tuple[Mapping[str, Any], ...]:
    """Return the function descriptions of a service, by its class name."""
    return read_descriptions(_FILES[name])


@functools.lru_cache(maxsize=32)
def read_descriptions(module: str) -> tuple[Mapping[str, Any], ...]:
    """Read the function descriptions of a service module; cached."""
    file = data_folder() / "multi_turn_func_doc" / f"{module}.json"
    return tuple(json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip())


@functools.lru_cache(maxsize=1)
def new_functions_message() -> str:
    """Return the user's message that announces added functions.

    The text is verbatim from the package, so that scores are comparable.
    """
    module = importlib.import_module("bfcl_eval.constants.default_prompts")
    return str(module.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC)


_NEEDS_OF_MEMORY = {
    "kv": "overrides rank-bm25", "rec_sum": "overrides", "vector": "overrides sentence-transformers faiss-cpu"
}  # fmt: skip


def create_memory(backend: str) -> Any:
    """Return an empty memory of the package.

    Args:
        backend: `kv`, `vector` or `rec_sum`.

    Raises:
        RecipeError: If the package or a dependency of this memory is not installed, or if there is no such memory.
    """
    data_folder()
    if backend not in _NEEDS_OF_MEMORY:
        raise RecipeError(f'BFCL: no memory named "{backend}"; memories are {", ".join(_NEEDS_OF_MEMORY)}')
    try:
        module = importlib.import_module(f"bfcl_eval.eval_checker.multi_turn_eval.func_source_code.memory_{backend}")
    except ImportError as error:
        raise RecipeError(
            f"BFCL: the memory {backend} lacks a dependency ({error}): pip install {_NEEDS_OF_MEMORY[backend]}"
        ) from None
    except OSError as error:
        raise RecipeError(f"BFCL: the memory {backend} cannot download its embedding model: {error}") from None
    return getattr(module, f"MemoryAPI_{backend}")()


def memory_instructions(backend: str, scenario: str, memory: Any, *, asks: bool) -> str:
    """Return the verbatim system message: the agent's role, and its memory.

    Args:
        backend: Kind of the memory.
        scenario: Scenario of the conversation.
        memory: Memory whose core content the message shows.
        asks: Append the answer format of the benchmark.
    """
    prompts = importlib.import_module("bfcl_eval.constants.default_prompts")
    kind = "UNIFIED" if backend == "rec_sum" else "CORE_ARCHIVAL"
    template: str = getattr(prompts, f"MEMORY_BACKEND_INSTRUCTION_{kind}")
    text = template.format(
        scenario_setting=prompts.MEMORY_AGENT_SETTINGS[scenario], memory_content=memory._dump_core_memory_to_context()
    )
    form = prompts.ADDITIONAL_SYSTEM_PROMPT_FOR_AGENTIC_RESPONSE_FORMAT
    return f"{text}\n\n{form}" if asks else text
