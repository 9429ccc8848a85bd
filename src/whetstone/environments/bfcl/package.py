"""What is taken from the package `bfcl-eval`: its data, and the services that conversations change.

Nothing else of it is imported: of its dependencies none is needed (`pip install --no-deps bfcl-eval`).
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

from whetstone.environments.dependencies import Need, check_needs
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
"""By class, the module it is in and the file that describes its functions."""
_STATELESS = ("MathAPI",)


NEEDS = (Need("package", "bfcl_eval", "pip install --no-deps bfcl-eval"),)


def data_folder() -> Path:
    """Where the package keeps its questions.

    Raises:
        RecipeError: It is not installed; the message has the command.
    """
    check_needs("BFCL", NEEDS)
    found = importlib.util.find_spec("bfcl_eval")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "data"


def services(names: Sequence[str], configuration: Mapping[str, Any], *, long_context: bool) -> dict[str, Any]:
    """Services by name, each in the state a conversation begins with.

    Raises:
        RecipeError: The package is not installed, or has no such service.
    """
    data_folder()
    made = {}
    for name in names:
        if name not in _FILES:
            raise RecipeError(f"BFCL: no service {name}; there are {', '.join(_FILES)}")
        module = importlib.import_module(f"bfcl_eval.eval_checker.multi_turn_eval.func_source_code.{_FILES[name]}")
        made[name] = getattr(module, name)()
        if name not in _STATELESS:
            made[name]._load_scenario(deepcopy(configuration.get(name, {})), long_context=long_context)
    return made


def functions(name: str) -> tuple[Mapping[str, Any], ...]:
    """What is said of a service's functions."""
    return described(_FILES[name])


@functools.lru_cache(maxsize=32)
def described(module: str) -> tuple[Mapping[str, Any], ...]:
    """What is said of the functions of a module of services."""
    file = data_folder() / "multi_turn_func_doc" / f"{module}.json"
    return tuple(json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip())


@functools.lru_cache(maxsize=1)
def said_with_new_functions() -> str:
    """What the user says when functions are added, word for word: scores are only comparable where it is."""
    module = importlib.import_module("bfcl_eval.constants.default_prompts")
    return str(module.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC)


_NEEDS_OF_MEMORY = {
    "kv": "overrides rank-bm25", "rec_sum": "overrides", "vector": "overrides sentence-transformers faiss-cpu"
}  # fmt: skip


def memory_of(backend: str) -> Any:
    """An empty memory.

    Raises:
        RecipeError: The package is not installed, or not what this memory needs; or there is no such one.
    """
    data_folder()
    if backend not in _NEEDS_OF_MEMORY:
        raise RecipeError(f'BFCL: no memory "{backend}"; there are {", ".join(_NEEDS_OF_MEMORY)}')
    try:
        module = importlib.import_module(f"bfcl_eval.eval_checker.multi_turn_eval.func_source_code.memory_{backend}")
    except ImportError as error:
        raise RecipeError(
            f"BFCL's memory {backend} needs more ({error}): pip install {_NEEDS_OF_MEMORY[backend]}"
        ) from None
    except OSError as error:
        raise RecipeError(f"BFCL's memory {backend} cannot fetch the model it finds texts with: {error}") from None
    return getattr(module, f"MemoryAPI_{backend}")()


def instructions_of_memory(backend: str, scenario: str, memory: Any, *, asks: bool) -> str:
    """The system message, word for word: whom the agent serves, what its memory is, and what that holds.

    Args:
        asks: Whether a question is to be answered in the benchmark's form.
    """
    prompts = importlib.import_module("bfcl_eval.constants.default_prompts")
    kind = "UNIFIED" if backend == "rec_sum" else "CORE_ARCHIVAL"
    template: str = getattr(prompts, f"MEMORY_BACKEND_INSTRUCTION_{kind}")
    said = template.format(
        scenario_setting=prompts.MEMORY_AGENT_SETTINGS[scenario], memory_content=memory._dump_core_memory_to_context()
    )
    form = prompts.ADDITIONAL_SYSTEM_PROMPT_FOR_AGENTIC_RESPONSE_FORMAT
    return f"{said}\n\n{form}" if asks else said
