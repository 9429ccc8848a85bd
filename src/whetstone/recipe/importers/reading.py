"""Reading of TRL and verl configurations: YAML, JSON, Python scripts and shell scripts.

Nothing is executed.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from whetstone.errors import RecipeError, did_you_mean
from whetstone.recipe.importers.translation import LIBRARIES
from whetstone.recipe.importers.translation_rules import Computed
from whetstone.recipe.yaml_text import yaml_document

_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^{}]*))?\}|(\w+))")
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.S)
_OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_]\w*(?:\.\w+)+)=(.*)", re.S)
_AFTER_VALUES = re.compile(r"--[A-Za-z]|-m$|[;&|]|\S+\.py$")
"""Word after the values of an option: another option, the program of a launcher, or an operator of the shell."""
_CONFIG = re.compile(r"(GRPO|RLOO|PPO|OnlineDPO)?Config$")
_TRAINER = re.compile(r"(GRPO|RLOO|PPO|OnlineDPO)Trainer$")
_WHOLE = ("model_init_kwargs", "chat_template_kwargs")
"""Keys whose value is a mapping."""
_MODEL_LOADER = "from_pretrained"


def read_config(kind: str, path: Path) -> dict[str, Any]:
    """Read a configuration of TRL or verl.

    Args:
        kind: `trl` or `verl`.
        path: YAML or JSON; a Python script with a call `GRPOConfig(…)`, a dict, or its command line in the docstring;
            or a shell script with a command line.

    Returns:
        Value by dotted key.

    Raises:
        RecipeError: If the file does not exist, cannot be read, or is not a configuration of this kind.
    """
    if not path.is_file():
        raise RecipeError(f"{path}: no such file")
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".py":
        keys = _read_script(text, path)
    elif path.suffix in (".sh", ".bash"):
        keys = _read_command(text, path)
    else:
        result = yaml_document(text, str(path), plain=True)
        if not isinstance(result, Mapping):
            raise RecipeError(f"{path}: a mapping of keys is expected, got {type(result).__name__}")
        keys = dict(_flatten(result))
    _check_kind(kind, keys, path)
    return keys


def _check_kind(kind: str, keys: Mapping[str, Any], path: Path) -> None:
    known = {name: library.rules for name, library in LIBRARIES.items()}
    if any(key in known[kind] for key in keys):
        return
    other = next((name for name in known if name != kind and any(key in known[name] for key in keys)), "")
    near = f"; it looks like one of {other}: whetstone import {other} {path}" if other else ""
    first = next(iter(keys), "")
    near = near or did_you_mean(first, known[kind])
    raise RecipeError(f"{path}: no key of a configuration of {kind} in it{near if len(near) < 300 else ''}")


def _flatten(nested: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        if (
            isinstance(value, Mapping)
            and value
            and f"{above}{key}" not in ("model_init_kwargs", "chat_template_kwargs")
        ):
            yield from _flatten(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


# ------------------------------------------------------------ Python


def _read_script(text: str, path: Path) -> dict[str, Any]:
    """Read the configuration of a Python script, without running it.

    It is in the keyword arguments of `GRPOConfig(…)`, `LoraConfig(…)` and `GRPOTrainer(…)`, in a dict, or in the
    command line of the docstring.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise RecipeError(f"{path}:{error.lineno}  not Python: {error.msg}") from None
    script = _Script(tree)
    keys = script.keys()
    docstring = ast.get_docstring(tree) or ""
    command = _read_command(docstring, path) if "--" in docstring else {}
    computed = {key for key, value in keys.items() if isinstance(value, Computed)}
    replaced = computed & (command.keys() | ({"model"} if "model_name_or_path" in command else set()))
    keys = {**command, **{key: value for key, value in keys.items() if key not in replaced}}
    if keys:
        return keys
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            try:
                return dict(_flatten({str(key): value for key, value in ast.literal_eval(node).items()}))
            except ValueError:
                continue
    raise RecipeError(f"{path}: no GRPOConfig(…), no GRPOTrainer(…) and no dict of literals in it")


class _Script:
    """Parsed training script, from which literal values are read."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self.assigned: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.assigned.setdefault(node.targets[0].id, node.value)

    def keys(self) -> dict[str, Any]:
        """Return the keys of the configuration, followed by the arguments of the trainer."""
        result: dict[str, Any] = {}
        configs = sorted(self._find_name(_CONFIG), key=lambda call: "GRPO" not in ast.unparse(call.func))
        if configs:
            if configs[0].args:
                result["output_dir"] = self.value(configs[0].args[0])
            result |= {word.arg: self.value(word.value) for word in configs[0].keywords if word.arg}
        trainers = self._find_name(_TRAINER)
        names = ("model", "reward_funcs")
        words = {
            **dict(zip(names, trainers[0].args if trainers else (), strict=False)),
            **{word.arg: word.value for word in (trainers[0].keywords if trainers else ()) if word.arg},
        }
        words.pop("args", None)
        for name, node in words.items():
            adapters = self._adapters(node) if name == "peft_config" else None
            if adapters is not None:
                result |= {f"peft_config.{word.arg}": self.value(word.value) for word in adapters.keywords if word.arg}
            else:
                result[name] = self.value(node, is_model=name == "model", is_data=name.endswith("_dataset"))
        return result

    def _find_name(self, pattern: re.Pattern[str]) -> list[ast.Call]:
        return [call for call in self.calls if pattern.fullmatch(ast.unparse(call.func).rpartition(".")[2])]

    def _adapters(self, node: ast.expr) -> ast.Call | None:
        node = self._resolve_name(node)
        is_config = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("LoraConfig")
        return node if is_config and isinstance(node, ast.Call) else None

    def _resolve_name(self, node: ast.expr) -> ast.expr:
        """Return the expression that was first assigned to a name; other expressions unchanged."""
        for _ in range(10):
            if isinstance(node, ast.Name) and node.id in self.assigned:
                node = self.assigned[node.id]
        return node

    def value(self, node: ast.expr, *, is_model: bool = False, is_data: bool = False) -> Any:
        """Return the literal value of an expression; its source text if it is not literal."""
        text = ast.unparse(node)
        followed = self._resolve_name(node)
        try:
            return ast.literal_eval(followed)
        except ValueError:
            pass
        if re.fullmatch(r"torch\.\w+", ast.unparse(followed)):
            return ast.unparse(followed)
        loads = [call for call in ast.walk(followed) if isinstance(call, ast.Call)]
        wanted = _MODEL_LOADER if is_model else "load_dataset" if is_data else ""
        for call in loads if wanted else ():
            if ast.unparse(call.func).endswith(wanted) and call.args:
                result = self.value(call.args[0])
                if isinstance(result, str) and not isinstance(result, Computed):
                    files = [self.value(word.value) for word in call.keywords if word.arg == "data_files"]
                    return {"path": result, "data_files": files[0]} if is_data and files else result
        if is_model and isinstance(followed, ast.Name | ast.Attribute):
            return Computed(text)
        return Computed(text)


# ------------------------------------------------------------ command lines


def _read_command(text: str, path: Path) -> dict[str, Any]:
    """Return the options of the first command line in a text that has some.

    verl has `key=value`, and TRL `--key value`.
    """
    variables: dict[str, str] = {}
    result: dict[str, Any] = {}
    for line in re.sub(r"\\\s*\n", " ", text).split("\n"):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a quote that is closed on a later line
            words = line.split()
        assigned = [_ASSIGNMENT.fullmatch(word) for word in words if not word.startswith("-")]
        if words and len(assigned) == len([word for word in words if word != "export"]) and all(assigned):
            variables |= {match[1]: _expand_default(match[1], match[2]) for match in assigned if match is not None}
            continue
        keys = dict(_options([_expand(word, variables) for word in words]))
        if len(keys) > 1 or (keys and not result):
            result = {**keys, **result} if result and set(keys) & set(result) else {**result, **keys}
    return result


def _expand_default(name: str, value: str) -> str:
    """Return `VALUE` for `NAME=${NAME:-VALUE}`; other values unchanged."""
    return _VARIABLE.sub(lambda m: m[2] if m[1] == name and m[2] is not None else m[0], value)


def _expand(word: str, variables: Mapping[str, str]) -> str:
    """Replace variables that the shell script sets; others stay as written."""
    for _ in range(10):
        new = _VARIABLE.sub(lambda m: variables.get(m[1] or m[3], m[2] if m[2] is not None else m[0]), word)
        if new == word:
            break
        word = new
    return word


def _options(words: list[str]) -> Iterator[tuple[str, Any]]:
    place = 0
    while place < len(words):
        word, place = words[place], place + 1
        override = _OVERRIDE.fullmatch(word)
        if override is not None:
            yield override[1], _parse(override[2])
        elif re.fullmatch(r"--[A-Za-z]\w*(=.*)?", word, re.S):
            name, equals, value = word[2:].partition("=")
            values = [value] if equals else []
            while not equals and place < len(words) and not _AFTER_VALUES.match(words[place]):
                values.append(words[place].rstrip(","))
                place += 1
            yield name, True if not values else _parse(values[0]) if len(values) == 1 else [*map(_parse, values)]


def _parse(text: str) -> Any:
    """Parse a value as YAML; a text with unknown variables becomes `Computed`."""
    if text.startswith(("~/", "$HOME/", "${HOME}/")):
        return f"${{HOME}}/{text.partition('/')[2]}"
    if _VARIABLE.search(text) and not text.startswith("${"):
        return text if text.startswith("$PWD") else Computed(text)
    if re.search(r"\$\(|`", text):
        return Computed(text)
    try:
        return yaml_document(text, "value", plain=True)
    except RecipeError:
        return text
