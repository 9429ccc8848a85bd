"""A tool, a reward and a tracker that repeat the secrets they receive, as a careless library does."""

import json
import os
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

from whetstone.trajectory import Score

LITERAL = {
    "headers": "pl4nted-headers-secret",
    "environment": "pl4nted-environment-secret",
    "variables": "pl4nted-variables-secret",
    "api_key": "pl4nted-api-key-secret",
    "token": "pl4nted-token-secret",
    "password": "pl4nted-password-secret",
    "url": "pl4nted-url-secret",
    "query": "pl4nted-query-secret",
    "command": "pl4nted-command-secret",
    "provider": "hf_" + "Pl4ntedSecret" * 3,
}
"""A value for each key that can hold a secret."""
VARIABLE = {name: value.replace("nted", "nted-variable") for name, value in LITERAL.items() if name != "provider"}
"""Values of environment variables `PLANTED_…`."""
PLANTED = [*LITERAL.values(), *VARIABLE.values()]


def literal_options(path):
    """Return options of `Shop` with literal secrets in each key."""
    return _options(LITERAL, path) | {"note": f"see {LITERAL['provider']}"}


def variable_options(path):
    """Return options of `Shop` that name an environment variable for each secret."""
    return _options({name: f"${{PLANTED_{name.upper()}}}" for name in VARIABLE}, path)


def set_variables(monkeypatch):
    """Set the environment variables of `variable_options`."""
    for name, value in VARIABLE.items():
        monkeypatch.setenv(f"PLANTED_{name.upper()}", value)


def _options(value, path):
    return {
        "name": "support.leaked_secrets:Shop",
        "headers": {"Authorization": f"Bearer {value['headers']}", "Accept": "application/json"},
        "environment": {"SHOP": value["environment"], "LANG": "C"},
        "variables": {"BACKEND": value["variables"], "LEVEL": "easy"},
        "api_key": value["api_key"],
        "token": value["token"],
        "password": value["password"],
        "url": f"https://ann:{value['url']}@shop.example/v1?api_key={value['query']}",
        "command": ["server", "--token", value["command"]],
        "path": str(path),
    }


class Shop:
    """A calculator that shows one of its settings with each result."""

    def __init__(
        self,
        *,
        headers: dict[str, str],
        environment: dict[str, str],
        variables: dict[str, str],
        api_key: str,
        token: str,
        password: str,
        url: str,
        command: list[str],
        path: str,
        note: str = "",
    ) -> None:
        self._told = [*headers.values(), *environment.values(), *variables.values(), api_key, token, password, url]
        self._told += [*command, note]
        self._path = Path(path)

    def pocket_calculator(self, expression: str) -> str:
        """One operation on two numbers.

        Args:
            expression: Two numbers with an operator between them.
        """
        number = int(self._path.read_text()) if self._path.is_file() else 0
        self._path.write_text(str(number + 1))
        return f"7 by {self._told[number % len(self._told)]}"


async def failing(trajectory, task):
    """Raise an error that repeats every planted value."""
    raise RuntimeError(f"the backend refused {' '.join(PLANTED)}")


async def paying(trajectory, task):
    """Return a reward that differs between samples."""
    return Score(float(sum(sum(turn.action.ids) for turn in trajectory.turns) % 2), success=True)


class Recording:
    """A tracker that writes everything it receives into a file."""

    def __init__(self, *, path: str, api_key: str = "") -> None:
        self._path = Path(path)
        self.api_key = api_key

    def start(self, run):
        """Receive the run."""
        self._write({"recipe": run.recipe, "name": run.name})

    def log(self, step, metrics):
        """Receive metrics."""
        self._write(dict(metrics))

    def finish(self, summary):
        """Receive the summary."""
        self._write(dict(summary or {}))

    def _write(self, content):
        with open(self._path, "a") as file:
            file.write(json.dumps(content) + "\n")


class _Recorder(types.ModuleType):
    """A module whose every attribute can be called, and that stores all arguments."""

    def __init__(self, name, calls):
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.__path__ = []
        self._calls = calls

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Called(self._calls)


class _Called:
    """An object whose every attribute and result is another one."""

    def __init__(self, calls):
        self._calls = calls

    def __call__(self, *arguments, **options):
        self._calls.append((arguments, options))
        return _Called(self._calls)

    def __getattr__(self, name):
        return _Called(self._calls)

    def __getitem__(self, key):
        return _Called(self._calls)

    def __len__(self):
        return 0

    def __iter__(self):
        return iter(())

    def __bool__(self):
        return False

    def __int__(self):
        return 0

    def __repr__(self):
        return "called"


MODULES = (
    "wandb", "mlflow", "mlflow.entities", "mlflow.tracking", "trackio", "trackio.utils", "trackio.run", "tensorboard",
    "tensorboard.summary", "tensorboard.summary.writer", "tensorboard.summary.writer.event_file_writer",
    "tensorboard.compat", "tensorboard.compat.proto", "tensorboard.compat.proto.event_pb2",
    "tensorboard.compat.proto.summary_pb2", "tensorboard.compat.proto.tensor_pb2",
    "tensorboard.compat.proto.tensor_shape_pb2", "tensorboard.plugins", "tensorboard.plugins.text",
    "tensorboard.plugins.text.metadata",
)  # fmt: skip


def stand_in_trackers(monkeypatch):
    """Replace the packages of all trackers; return the list of the calls they receive."""
    calls = []
    modules = {name: _Recorder(name, calls) for name in MODULES}
    for name, module in modules.items():
        monkeypatch.setitem(__import__("sys").modules, name, module)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(modules[parent], last, module)
    return calls


def planted_in(folder):
    """Yield (file, value) of each planted value in any file below a folder, as text or in base64."""
    places = []
    for path in sorted(Path(folder).rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        places += [(str(path), value) for value in PLANTED if value.encode() in content]
    return places


def mode_of(path):
    """Return the permission bits of a file."""
    return os.stat(path).st_mode & 0o777
