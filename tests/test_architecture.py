"""Data flows one way; imports say so. And other habits that are cheap to keep from the first day."""

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "whetstone"
# a room may import the rooms before it, and the seam of any room: its protocol.py, and optional.py where it has one
ORDER = [
    "window", "errors", "extras", "ranges", "plain_json", "stopping", "seeding", "compute_thread", "atomic_write",
    "shortening", "network", "contracts", "plugins", "recipe", "sandbox", "chat", "trajectory", "trajectory_json",
    "causes", "tools", "tasks", "environments", "policies", "inference", "rewards", "rollout", "algorithms", "learning",
    "evaluation", "reporting", "record", "assembly", "training", "analysis", "scaling", "serving", "recipes", "cli",
]  # fmt: skip
FILES = sorted(SOURCE.rglob("*.py"))
OPTIONAL = {
    "peft", "bitsandbytes", "duckdb", "mcp", "mcp_types", "psycopg", "tantivy", "usearch", "gymnasium", "minigrid",
    "textworld", "scienceworld", "textarena", "pyspiel", "open_spiel", "reasoning_gym", "jericho", "datasets",
    "pyarrow", "starlette", "uvicorn", "websockets",
}  # fmt: skip
"""Packages of extras: they may be imported inside a function."""


def room_of(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "whetstone"


def imports(path):
    """(line, module, whether inside a function) of every import."""
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.lineno, str(node.module), id(node) in inside
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, id(node) in inside


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_with_the_flow_of_data(path):
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if room == "__init__":
        return
    for line, module, _ in imports(path):
        if not module.startswith("whetstone") or module.endswith((".protocol", ".optional")):
            continue
        other = room_of(module)
        if other == "whetstone":  # `from whetstone import training`
            continue
        assert other in ORDER, f"{path}:{line}: no room named {other}"
        assert ORDER.index(other) <= ORDER.index(room), f"{path}:{line}: {room} imports {other}, which comes after it"


@pytest.mark.parametrize("path", sorted((SOURCE / "algorithms").rglob("*.py")), ids=lambda path: path.stem)
def test_algorithms_know_nothing_but_tensors_and_trajectories(path):
    for line, module, _ in imports(path):
        if module.startswith("whetstone"):
            assert room_of(module) in ("algorithms", "trajectory", "ranges"), (
                f"{path}:{line}: algorithms import {module}"
            )


@pytest.mark.parametrize("path", sorted((SOURCE / "sandbox" / "guest").glob("*.py")), ids=lambda path: path.stem)
def test_what_runs_inside_the_sandbox_needs_nothing_of_ours(path):
    for line, module, _ in imports(path):
        ours = module.startswith("whetstone")
        assert (
            module == "pyseccomp"
            or (ours and module.startswith("whetstone.sandbox.guest"))
            or (module.split(".")[0] in sys.stdlib_module_names)
        ), f"{path}:{line}: {module} is not there inside"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_import_hides_inside_a_function(path):
    hidden = [
        (line, module) for line, module, inside in imports(path) if inside and module.split(".")[0] not in OPTIONAL
    ]
    assert not hidden, f"{path}: {hidden}"


@pytest.mark.parametrize(
    "path",
    sorted([*SOURCE.rglob("protocol.py"), *SOURCE.rglob("optional.py")]),
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_a_seam_imports_nothing_heavy(path):
    heavy = {"transformers", "tokenizers", "scipy", "matplotlib"}
    for line, module, _ in imports(path):
        assert module.split(".")[0] not in heavy, f"{path}:{line}: a seam imports {module}"


def algorithms():
    for path in sorted((SOURCE / "algorithms").rglob("*.py")):
        if path.stem == "levels":  # declares, and computes nothing
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield pytest.param(path, node, id=node.name)


@pytest.mark.parametrize(("path", "function"), list(algorithms()))
def test_every_algorithm_cites_its_source_and_has_a_test_of_its_name(path, function):
    assert re.search(r"Source: .*(arXiv:\d|https?://|\d{4})", ast.get_docstring(function) or ""), (
        f"{path}: {function.name}"
    )
    test = ROOT / "tests" / path.relative_to(SOURCE).parent / f"test_{path.stem}.py"
    assert test.is_file(), f"{function.name} has no test at {test}"
    assert function.name in test.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_file_opens_with_what_it_is_and_public_things_have_docstrings(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{path} has no module docstring"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{path}:{node.lineno}: {node.name} has no docstring"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_file_is_a_drawer_and_none_is_too_long(path):
    assert path.stem not in {"utils", "common", "helpers", "misc", "legacy"}
    assert len(path.read_text().splitlines()) <= 500, f"{path}: a second name is waiting to be found"


def test_shop_windows_offer_what_they_name():
    for path in SOURCE.rglob("__init__.py"):
        name = ".".join(("whetstone", *path.relative_to(SOURCE).parent.parts))
        module = importlib.import_module(name)
        missing = [name for name in getattr(module, "__all__", []) if not hasattr(module, name)]
        assert not missing, f"{path}: {missing}"


FOREIGN = {
    "chat/incremental.py": {"chat_template": "tokenizers", "name_or_path": "tokenizers"},
    "chat/template.py": {
        "until": "a thread's own clock",
        "made": "a thread's own count",
        "jinja_pass_arg": "Jinja",
        "ctx": "Jinja",
    },
    "cli/doctor.py": {"sched_getaffinity": "not on every system"},
    "environments/adapters/gymnasium.py": {"n": "Gymnasium's spaces"},
    "environments/adapters/legal_moves.py": {"elimination_order": "TextArena's", "error_count": "TextArena's"},
    "inference/forward.py": {"num_key_value_heads": "configurations"},
    "inference/local.py": {"num_key_value_heads": "configurations", "head_dim": "configurations"},
    "learning/resources.py": {"head_dim": "configurations"},
    "learning/token_outputs.py": {
        "logit_scale": "configurations",
        "logits_scaling": "configurations",
        "final_logit_softcapping": "configurations",
    },
    "plain_json.py": {"detach": "tensors", "tolist": "tensors"},
    "policies/adapters.py": {"_hf_peft_config_loaded": "models"},
    "policies/policy.py": {
        "max_position_embeddings": "configurations",
        "layer_types": "configurations",
        "layers_block_type": "configurations",
        "sub_configs": "configurations",
        "_attn_implementation": "configurations",
    },
    "recipe/yaml_text.py": {"tag": "YAML's events"},
    "rewards/scoring.py": {"item": "scalars of NumPy and PyTorch"},
    "tools/mcp.py": {"text": "MCP's resources"},
    "training/evaluating.py": {"chat_template": "tokenizers"},
}
"""What is asked of others' objects by its name, and whose it is."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_what_a_part_may_have_is_a_protocol_and_no_name_in_quotes(path):
    asked = {
        (node.args[1].value, node.lineno)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
        and isinstance(node.args[1], ast.Constant)
        and not str(node.args[1].value).startswith("__")  # Python's own: `__name__`, `__self__`
    }
    known = FOREIGN.get(str(path.relative_to(SOURCE)), {})
    for name, line in sorted(asked):
        assert name in known, f"{path}:{line}: {name} is a name in quotes; put it into a protocol and ask `fulfils`"
    gone = set(known) - {name for name, _ in asked}
    assert not gone, f"{path} no longer asks for {sorted(gone)}"
