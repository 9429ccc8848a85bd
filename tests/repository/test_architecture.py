"""Imports follow the direction of the data flow, and further rules of the code.

Each test collects all violations as `file:line: problem`.
"""

import ast
import functools
import gc
import importlib
import re
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.structure

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "whetstone"
# A package imports packages before it in this order. Packages after `recipe` can also import the interfaces of any
# package: its protocol.py and optional_protocols.py.
ORDER = [
    "renamed_modules", "lazy_imports", "masking", "errors", "user_code", "optional_dependencies", "bounded_types",
    "renames", "python_syntax", "strict_json", "cancellation", "waiting", "seeding", "compute_thread", "garbage",
    "own_loop", "atomic_write", "json_lines", "cache_dir", "truncate_text", "network", "capabilities", "plugins",
    "recipe", "sandbox", "tokens", "chat", "notebook_html", "provenance", "trajectory", "trajectory_json",
    "failure_causes", "tool_calls", "tools", "tasks", "environments",
    "policies", "inference", "rewards", "rollout", "algorithms", "learning", "evaluation", "reporting",
    "record", "data", "assembly", "scaling", "training", "analysis", "serving", "viewer", "recipes", "cli",
]  # fmt: skip
EXPORTED = SOURCE / "environments" / "exchange" / "project-templates"
"""Files of exported environments, which import the package of their format."""
FILES = sorted(path for path in SOURCE.rglob("*.py") if EXPORTED not in path.parents)
ALGORITHMS = sorted((SOURCE / "algorithms").rglob("*.py"))
GUEST = sorted((SOURCE / "sandbox" / "guest").glob("*.py"))
SEAMS = sorted([*SOURCE.rglob("protocol.py"), *SOURCE.rglob("optional_protocols.py")])
OPTIONAL = {
    "peft", "gguf", "accelerate", "bitsandbytes", "duckdb", "mcp", "mcp_types", "psycopg", "tantivy", "usearch",
    "gymnasium", "minigrid", "pettingzoo",
    "textworld", "scienceworld", "textarena", "pyspiel", "open_spiel", "reasoning_gym", "jericho", "datasets",
    "pyarrow", "starlette", "uvicorn", "llguidance", "websockets", "verifiers", "tensorboard",
    "wandb", "mlflow", "trackio", "ray", "detect_secrets",
    "opentelemetry", "google", "harbor",
}  # fmt: skip
"""Packages of extras and of separate environments, which can be imported inside a function."""


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
    imported: list[tuple[int, str, bool]] = []
    waiting = [(tree_of(path), False)]
    while waiting:  # only statements contain imports
        node, is_inside = waiting.pop()
        if isinstance(node, ast.ImportFrom):
            imported.append((node.lineno, "." * node.level + (node.module or ""), is_inside))
        elif isinstance(node, ast.Import):
            imported += [(node.lineno, alias.name, is_inside) for alias in node.names]
        is_inside = is_inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            waiting += [(each, is_inside) for each in getattr(node, field, ()) if isinstance(each, ast.AST)]
    return sorted(imported)


def describe_violations(violations):
    """Return all violations, one per line."""
    return "\n".join(f"{path.relative_to(ROOT)}:{line}: {what}" for path, line, what in violations)


def test_source_files_are_found():
    assert len(FILES) > 100
    assert len(ALGORITHMS) > 20
    assert len(GUEST) > 1
    assert len(SEAMS) > 5


def test_no_import_is_relative():
    assert not describe_violations(
        (path, line, module) for path in FILES for line, module, _ in imports(path) if module.startswith(".")
    )


def test_imports_follow_the_data_flow():
    assert not describe_violations(against_the_flow())


def against_the_flow():
    for path in FILES:
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room in ("__init__", "__main__"):
            continue
        for line, module, _ in imports(path):
            other = room_of(module)
            # `from whetstone import training` names no package of the list
            if not module.startswith("whetstone") or other == "whetstone":
                continue
            is_interface = module.endswith((".protocol", ".optional_protocols"))
            if is_interface and ORDER.index(room) > ORDER.index("recipe"):
                continue
            if other not in ORDER:
                yield path, line, f"no room named {other}"
            elif ORDER.index(other) > ORDER.index(room):
                yield path, line, f"{room} imports {other}, which comes after it"


def test_algorithms_import_only_tensors_and_trajectories():
    assert not describe_violations(
        (path, line, f"algorithms import {module}")
        for path in ALGORITHMS
        for line, module, _ in imports(path)
        if module.startswith("whetstone") and room_of(module) not in ("algorithms", "trajectory", "bounded_types")
    )


def test_code_inside_the_sandbox_imports_nothing_of_the_package():
    assert not describe_violations(
        (path, line, f"{module} is not there inside")
        for path in GUEST
        for line, module, _ in imports(path)
        if module != "pyseccomp"
        and not module.startswith("whetstone.sandbox.guest")
        and module.split(".")[0] not in sys.stdlib_module_names
    )


def test_no_import_is_inside_a_function():
    assert not describe_violations(
        (path, line, f"imports {module} inside a function")
        for path in FILES
        for line, module, inside in imports(path)
        if inside and module.split(".")[0] not in OPTIONAL
    )


def test_protocols_import_nothing_heavy():
    heavy = {"transformers", "tokenizers", "scipy", "matplotlib"}
    assert not describe_violations(
        (path, line, f"a seam imports {module}")
        for path in SEAMS
        for line, module, _ in imports(path)
        if module.split(".")[0] in heavy
    )


def test_every_algorithm_cites_its_source_and_has_a_test():
    assert not describe_violations(unproven_algorithms())


def unproven_algorithms():
    for path in ALGORITHMS:
        if path.stem == "axes":  # only declarations
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


def test_files_and_public_definitions_have_docstrings():
    assert not describe_violations(undescribed())


def undescribed():
    for path in FILES:
        tree = tree_of(path)
        if not ast.get_docstring(tree):
            yield path, 1, "no module docstring"
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node) and not node.name.startswith("test_"):  # its name is its description
                yield path, node.lineno, f"{node.name} has no docstring"


def test_no_file_has_a_generic_name_or_is_too_long():
    drawers = {"utils", "common", "helpers", "misc", "legacy"}
    assert not describe_violations((path, 1, f"{path.stem} names no idea") for path in FILES if path.stem in drawers)
    assert not describe_violations(
        (path, 701, "too long: more than 700 lines; split the module")
        for path in FILES
        if len(path.read_text().splitlines()) > 700
    )


def test_nothing_is_raised_inside_an_exception_group_handler():
    """Avoid Python 3.11.0 to 3.11.3, which wrap an exception raised inside `except*` into an ExceptionGroup, which no
    handler of the exception's own type catches.
    """
    assert not describe_violations(
        (path, node.lineno, "raises inside `except*`; catch Exception and use `errors.root_exception`")
        for path in FILES
        for group in ast.walk(tree_of(path))
        if isinstance(group, ast.TryStar)
        for handler in group.handlers
        for node in ast.walk(handler)
        if isinstance(node, ast.Raise) and node.exc is not None
    )


def test_exported_names_exist():
    assert not describe_violations(missing_in_windows())


def missing_in_windows():
    for path in (path for path in FILES if path.name == "__init__.py"):
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
    "strict_json.py": {"detach": "tensors", "model_dump": "pydantic"},
    "policies/adapters.py": {"_hf_peft_config_loaded": "models"},
    "policies/attention_masks.py": {
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
    "tools/mcp_tools.py": {"text": "MCP's resources"},
    "tools/schema.py": {"documentation": "the Doc of typing_extensions"},
    "training/evaluation_loop.py": {"chat_template": "tokenizers"},
}
"""Attribute that is read by name → owner."""


def test_optional_members_are_protocols_and_not_names_in_quotes():
    assert not describe_violations(names_in_quotes())


def names_in_quotes():
    for path in FILES:
        attributes = {
            (node.args[1].value, node.lineno)
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr")
            and isinstance(node.args[1], ast.Constant)
            and not str(node.args[1].value).startswith("__")  # of Python: `__name__`, `__self__`
        }
        known = FOREIGN.get(str(path.relative_to(SOURCE)), {})
        for name, line in sorted(attributes):
            if name not in known:
                yield path, line, f"{name} is a name in quotes; put it into a protocol and ask `fulfils`"
        for name in sorted(set(known) - {name for name, _ in attributes}):
            yield path, 0, f"no longer asks for {name}"
