"""Data flows one way; imports say so. And other habits that are cheap to keep from the first day.

Each test gathers every violation as `file:line: what` and shows them all.
"""

import ast
import functools
import gc
import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "whetstone"
# A package imports packages before it in this order. Packages after `recipe` can also import the interfaces of any
# package: its protocol.py and optional.py.
ORDER = [
    "window", "masking", "errors", "user_code", "extras", "ranges", "renames", "python_syntax",
    "plain_json", "stopping", "waiting", "seeding", "compute_thread",
    "atomic_write", "json_lines", "cache_folder", "shortening", "network", "contracts", "plugins", "recipe", "sandbox",
    "tokens", "chat", "notebook_html", "end_reason", "provenance", "trajectory", "trajectory_json", "causes",
    "tool_calls", "tools", "tasks", "environments",
    "policies", "inference", "rewards", "rollout", "algorithms", "learning", "evaluation", "reporting",
    "record", "data", "assembly", "scaling", "training", "analysis", "serving", "viewing", "recipes", "cli",
]  # fmt: skip
FILES = sorted(SOURCE.rglob("*.py"))
ALGORITHMS = sorted((SOURCE / "algorithms").rglob("*.py"))
GUEST = sorted((SOURCE / "sandbox" / "guest").glob("*.py"))
SEAMS = sorted([*SOURCE.rglob("protocol.py"), *SOURCE.rglob("optional.py")])
OPTIONAL = {
    "peft", "gguf", "accelerate", "bitsandbytes", "duckdb", "mcp", "mcp_types", "psycopg", "tantivy", "usearch",
    "gymnasium", "minigrid",
    "textworld", "scienceworld", "textarena", "pyspiel", "open_spiel", "reasoning_gym", "jericho", "datasets",
    "pyarrow", "starlette", "uvicorn", "llguidance", "websockets", "verifiers", "tensorboard",
    "wandb", "mlflow", "trackio", "ray", "detect_secrets",
}  # fmt: skip
"""Packages of extras, and of an environment of their own: they may be imported inside a function."""


def room_of(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "whetstone"


@functools.cache
def tree_of(path):
    was_enabled = gc.isenabled()
    gc.disable()  # the collector would search all trees again and again
    try:
        return ast.parse(path.read_text())
    finally:
        if was_enabled:
            gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _forget_trees():
    """Release the trees, which the collector would search in all later tests of the process."""
    yield
    tree_of.cache_clear()


@functools.cache
def imports(path):
    """(line, module, whether inside a function) of every import; a relative one starts with a dot."""
    found: list[tuple[int, str, bool]] = []
    waiting = [(tree_of(path), False)]
    while waiting:  # only statements contain imports
        node, is_inside = waiting.pop()
        if isinstance(node, ast.ImportFrom):
            found.append((node.lineno, "." * node.level + (node.module or ""), is_inside))
        elif isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, is_inside) for alias in node.names]
        is_inside = is_inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            waiting += [(each, is_inside) for each in getattr(node, field, ()) if isinstance(each, ast.AST)]
    return sorted(found)


def told(violations):
    """Every violation, on a line of its own."""
    return "\n".join(f"{path.relative_to(ROOT)}:{line}: {what}" for path, line, what in violations)


def test_there_are_files_to_look_at():
    assert len(FILES) > 100
    assert len(ALGORITHMS) > 20
    assert len(GUEST) > 1
    assert len(SEAMS) > 5


def test_no_import_is_relative():
    assert not told(
        (path, line, module) for path in FILES for line, module, _ in imports(path) if module.startswith(".")
    )


def test_imports_point_with_the_flow_of_data():
    assert not told(against_the_flow())


def against_the_flow():
    for path in FILES:
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for line, module, _ in imports(path):
            other = room_of(module)
            # `from whetstone import training` names no package here
            if not module.startswith("whetstone") or other == "whetstone":
                continue
            is_interface = module.endswith((".protocol", ".optional"))
            if is_interface and ORDER.index(room) > ORDER.index("recipe"):
                continue
            if other not in ORDER:
                yield path, line, f"no room named {other}"
            elif ORDER.index(other) > ORDER.index(room):
                yield path, line, f"{room} imports {other}, which comes after it"


def test_algorithms_know_nothing_but_tensors_and_trajectories():
    assert not told(
        (path, line, f"algorithms import {module}")
        for path in ALGORITHMS
        for line, module, _ in imports(path)
        if module.startswith("whetstone") and room_of(module) not in ("algorithms", "trajectory", "ranges")
    )


def test_what_runs_inside_the_sandbox_needs_nothing_of_ours():
    assert not told(
        (path, line, f"{module} is not there inside")
        for path in GUEST
        for line, module, _ in imports(path)
        if module != "pyseccomp"
        and not module.startswith("whetstone.sandbox.guest")
        and module.split(".")[0] not in sys.stdlib_module_names
    )


def test_no_import_hides_inside_a_function():
    assert not told(
        (path, line, f"imports {module} inside a function")
        for path in FILES
        for line, module, inside in imports(path)
        if inside and module.split(".")[0] not in OPTIONAL
    )


def test_a_seam_imports_nothing_heavy():
    heavy = {"transformers", "tokenizers", "scipy", "matplotlib"}
    assert not told(
        (path, line, f"a seam imports {module}")
        for path in SEAMS
        for line, module, _ in imports(path)
        if module.split(".")[0] in heavy
    )


def test_every_algorithm_cites_its_source_and_has_a_test_of_its_name():
    assert not told(unproven_algorithms())


def unproven_algorithms():
    for path in ALGORITHMS:
        if path.stem == "levels":  # declares, and computes nothing
            continue
        test = ROOT / "tests" / path.relative_to(SOURCE).parent / f"test_{path.stem}.py"
        tested = test.read_text() if test.is_file() else ""
        for node in tree_of(path).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            if not re.search(r"Source: .*(arXiv:\d|https?://|\d{4})", ast.get_docstring(node) or ""):
                yield path, node.lineno, f"{node.name} cites no source"
            if node.name not in tested:
                yield path, node.lineno, f"{node.name} has no test in {test.relative_to(ROOT)}"


def test_every_file_opens_with_what_it_is_and_public_things_have_docstrings():
    assert not told(undescribed())


def undescribed():
    for path in FILES:
        tree = tree_of(path)
        if not ast.get_docstring(tree):
            yield path, 1, "no module docstring"
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node) and not node.name.startswith("test_"):  # its name is its sentence
                yield path, node.lineno, f"{node.name} has no docstring"


def test_no_file_is_a_drawer_and_none_is_too_long():
    drawers = {"utils", "common", "helpers", "misc", "legacy"}
    assert not told((path, 1, f"{path.stem} names no idea") for path in FILES if path.stem in drawers)
    assert not told(
        (path, 501, "too long: a second name is waiting to be found")
        for path in FILES
        if len(path.read_text().splitlines()) > 500
    )


def test_nothing_is_raised_inside_an_exception_group_handler():
    """Python 3.11.0 to 3.11.3 wraps an exception raised inside `except*` into an ExceptionGroup, which no handler of
    the exception's own type catches."""
    assert not told(
        (path, node.lineno, "raises inside `except*`; catch Exception and use `errors.innermost`")
        for path in FILES
        for group in ast.walk(tree_of(path))
        if isinstance(group, ast.TryStar)
        for handler in group.handlers
        for node in ast.walk(handler)
        if isinstance(node, ast.Raise) and node.exc is not None
    )


def test_shop_windows_offer_what_they_name():
    assert not told(missing_in_windows())


def missing_in_windows():
    for path in SOURCE.rglob("__init__.py"):
        module = importlib.import_module(".".join(("whetstone", *path.relative_to(SOURCE).parent.parts)))
        for name in getattr(module, "__all__", []):
            if not hasattr(module, name):
                yield path, 1, f"{name} is not there"


FOREIGN = {
    "chat/template.py": {
        "jinja_pass_arg": "Jinja",
        "ctx": "Jinja",
    },
    "cli/doctor.py": {"sched_getaffinity": "not on every system"},
    "environments/adapters/gymnasium.py": {"n": "Gymnasium's spaces"},
    "environments/adapters/legal_moves.py": {"elimination_order": "TextArena's", "error_count": "TextArena's"},
    "inference/forward.py": {"num_key_value_heads": "configurations"},
    "learning/token_outputs.py": {
        "logit_scale": "configurations",
        "logits_scaling": "configurations",
        "final_logit_softcapping": "configurations",
    },
    "plain_json.py": {"detach": "tensors", "model_dump": "pydantic"},
    "policies/adapters.py": {"_hf_peft_config_loaded": "models"},
    "policies/masking.py": {
        "attention_chunk_size": "configurations",
        "config": "models' layers",
        "layer_idx": "models' layers",
        "layer_types": "configurations",
        "rule": "tensors, put there by the mask they were given",
    },
    "policies/policy.py": {
        "auto_map": "configurations",
        "is_encoder_decoder": "configurations",
        "model_max_length": "tokenizers",
        "sub_configs": "configurations",
        "_attn_implementation": "configurations",
    },
    "recipe/yaml_text.py": {"tag": "YAML's events"},
    "rewards/scoring.py": {"item": "scalars of NumPy and PyTorch"},
    "tools/mcp.py": {"text": "MCP's resources"},
    "tools/schema.py": {"documentation": "the Doc of typing_extensions"},
    "training/evaluating.py": {"chat_template": "tokenizers"},
}
"""What is asked of others' objects by its name, and whose it is."""


def test_what_a_part_may_have_is_a_protocol_and_no_name_in_quotes():
    assert not told(names_in_quotes())


def names_in_quotes():
    for path in FILES:
        asked = {
            (node.args[1].value, node.lineno)
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr")
            and isinstance(node.args[1], ast.Constant)
            and not str(node.args[1].value).startswith("__")  # Python's own: `__name__`, `__self__`
        }
        known = FOREIGN.get(str(path.relative_to(SOURCE)), {})
        for name, line in sorted(asked):
            if name not in known:
                yield path, line, f"{name} is a name in quotes; put it into a protocol and ask `fulfils`"
        for name in sorted(set(known) - {name for name, _ in asked}):
            yield path, 0, f"no longer asks for {name}"
