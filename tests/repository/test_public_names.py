"""Names are those that a reader searches for: files, public functions and the terms of the field in docstrings.

`repeated_names.json` has the names that break a rule today. A list may only shrink:
`python tests/repository/test_public_names.py` stores the present ones.
"""

import ast
import collections
import functools
import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.structure

SOURCE = Path(__file__).parents[2] / "src" / "whetstone"
STORED = Path(__file__).with_name("repeated_names.json")
_VERBS = """
    Abort Accept Add Adjust Advance Aggregate Align Allocate Allow Answer Append Apply Ask Assign Attach Audit Average
    Begin Bind Block Build Calculate Call Cancel Center Change Check Choose Clear Clip Close Collect Combine Compare
    Compile Complete Compute Concatenate Configure Connect Continue Convert Copy Count Create Cut Decide Declare Decode
    Delete Deliver Derive Describe Detect Determine Disable Discard Disconnect Display Distribute Divide Download Draw
    Drop Emit Enable Encode End Enforce Enter Estimate Evaluate Exclude Execute Expand Explain Export Extend Extract
    Fail Feed Fetch Fill Filter Find Finish Fit Flatten Flush Follow Forget Fork Format Forward Free Freeze Generate
    Get Give Group Handle Hash Ignore Import Increase Index Infer Initialize Insert Install Interpolate Join Judge Keep
    Kill Let Limit List Load Log Look Make Map Mark Mask Match Measure Merge Move Multiply Name Normalize Open Order
    Overwrite Pack Pad Parse Pass Pause Perform Permit Persist Play Plot Poll Predict Prepare Print Process Publish
    Pull Push Put Raise Rank Read Receive Recompute Record Reduce Refuse Register Regress Reject Release Reload Remove
    Rename Render Replace Replay Report Request Require Reserve Reset Resolve Restart Restore Resume Retry Return
    Reuse Reward Rewrite Run Sample Save Scale Schedule Score Search Select Send Serialize Serve Set Shape Shift Show
    Shuffle Shut Simulate Skip Solve Sort Split Start Stop Store Stream Submit Subtract Sum Summarize Swap Take Test
    Tokenize Track Train Transform Translate Truncate Try Turn Update Upload Use Validate Verify Wait Walk Warn Weight
    Write Yield
"""
VERBS = frozenset(_VERBS.split())
TERMS = {
    "KV cache": ("kv[ _]cache", "inference/kv_cache.py"),
    "old log-probs": ("old[ _]log-?probs", "learning/learner.py"),
    "importance sampling correction": (
        "importance[ _]sampling[ _]corrections?", "algorithms/importance_sampling/__init__.py",
    ),
    "GRPO advantage": ("grpo advantages?", "algorithms/advantages/group_relative.py"),
    "LoRA sync to vLLM": ("lora sync to vllm", "inference/weight_transfer.py"),
    "tool call parsing": ("tool[ -]call parsing", "chat/formats/__init__.py"),
    "staleness bound": ("staleness", "rollout/staleness_control.py"),
    "checkpoint saving": ("checkpoint saving", "record/checkpoint.py"),
    "reward model training": ("reward model training", "training/reward_model.py"),
    "chat template": ("chat[ _]templates?", "chat/template.py"),
}  # fmt: skip
"""What a user searches for → (pattern, module that has to be found)."""


@functools.cache
def trees():
    paths = sorted(path for path in SOURCE.rglob("*.py") if "project-templates" not in path.parts)
    return {str(path.relative_to(SOURCE)): ast.parse(path.read_text("utf-8")) for path in paths}


def public_functions(body):
    """Yield the public functions and methods of public classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node.body)


def broken_rules():
    """Return the names that break a rule, sorted, per rule."""
    files, names, words = collections.Counter(), collections.Counter(), set()
    for path, tree in trees().items():
        files[Path(path).name] += 1
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        names.update({node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")})
        words |= {node.name for node in public_functions(tree.body) if "_" not in node.name}
    del files["__init__.py"], files["protocol.py"]
    return {
        "files_in_several_packages": sorted(name for name, count in files.items() if count > 1),
        "public_names_in_several_modules": sorted(name for name, count in names.items() if count > 1),
        "public_functions_of_one_word": sorted(words),
    }


@pytest.mark.parametrize(
    "rule", ["files_in_several_packages", "public_names_in_several_modules", "public_functions_of_one_word"]
)
def test_list_of_names_that_break_a_rule_only_shrinks(rule):
    now, stored = set(broken_rules()[rule]), set(json.loads(STORED.read_text("utf-8"))[rule])
    assert not now - stored, f"{rule}: take other names for {', '.join(sorted(now - stored))}"
    assert not stored - now, (
        f"run `python tests/repository/test_public_names.py`; gone: {', '.join(sorted(stored - now))}"
    )


def test_public_functions_open_with_a_verb():
    nodes = [node for tree in trees().values() for node in public_functions(tree.body)]
    first = [(ast.get_docstring(node) or "").partition(" ")[0].rstrip(":,.") for node in nodes]
    with_docstring = [word for word in first if word]
    assert sum(word in VERBS for word in with_docstring) >= 0.6 * len(with_docstring)


@pytest.mark.parametrize("term", TERMS)
def test_search_for_a_term_of_the_field_finds_its_module(term):
    pattern, expected = TERMS[term]
    lines = {path: f"{path} {(ast.get_docstring(tree) or '').partition(chr(10))[0]}" for path, tree in trees().items()}
    hits = [path for path, line in lines.items() if re.search(pattern, line, re.IGNORECASE)]
    assert expected in hits
    assert len(hits) <= 5, hits


if __name__ == "__main__":
    STORED.write_text(json.dumps(broken_rules(), indent=1) + "\n", encoding="utf-8")
