"""Success of an exported model that vLLM serves, with `tools=` and its tool-call parser, next to `whetstone evaluate`.

    python -m benchmarks served_export RUN --vllm-python PATH [--episodes N] [--json]

The run is exported, served by `vllm serve` with the flags of its model card, and evaluated on the same held-out tasks
through the OpenAI API. The goal is reached if the served success is within the 95 % interval of the evaluation.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from whetstone import training
from whetstone.chat import ChatEndpoint
from whetstone.inference.server_process import free_port
from whetstone.reporting import Progress
from whetstone.training.agent_evaluation import evaluate

_START_SECONDS = 900.0


def serve_and_evaluate(run: Path, vllm_python: str, episodes: int, folder: Path) -> tuple[Any, str]:
    """Return the evaluation of the served export, and the flags of its tool-call parser."""
    exported = folder / "export"
    lines = training.export_model(str(run), exported, weights="merged", dtype="float32").lines
    print("\n".join(lines), file=sys.stderr)
    card = (exported / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^\$ vllm serve FOLDER(.*)$", card, re.MULTILINE)
    assert command is not None, "the model card has no command of vLLM"
    flags = command[1].replace("FOLDER", str(exported)).split()
    port = free_port()
    words = [vllm_python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(exported), "--port", str(port)]
    words += ["--served-model-name", "agent", "--dtype", "float32", *flags]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    with open(folder / "vllm.log", "wb") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/health", server, folder / "vllm.log")
        endpoint = ChatEndpoint(f"http://127.0.0.1:{port}/v1", "agent")
        return evaluate(run, policy=endpoint, episodes=episodes, progress=Progress(quiet=True)), command[1]
    finally:
        server.terminate()
        server.wait(60)


def wait_until_ready(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for the server.

    Raises:
        RuntimeError: The server exited, or does not respond in time.
    """
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise RuntimeError(f"vLLM did not start: {log.read_text(errors='replace')[-2000:]}")


def main() -> None:
    """Measure one run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--vllm-python", metavar="PATH", required=True, help="interpreter with vllm or vllm-cpu")
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    began = time.perf_counter()
    own = evaluate(options.run, episodes=options.episodes, progress=Progress(quiet=True))
    with tempfile.TemporaryDirectory() as folder:
        served, flags = serve_and_evaluate(options.run, options.vllm_python, options.episodes, Path(folder))
    low, high = own.interval
    result = {
        "name": "served_export",
        "measured": {
            "evaluate": own.success,
            "interval": [low, high],
            "vllm": served.success,
            "vllm_interval": list(served.interval),
            "episodes": own.episodes,
            "parser": flags,
        },
        "goal": f"{low:.1%} <= vllm <= {high:.1%}",
        "bound": None,
        "ratios": {"within_interval": float(low <= served.success <= high)},
        "machine": platform.processor() or platform.machine(),
        "seconds": time.perf_counter() - began,
    }
    if options.json:
        print(json.dumps(result))
        return
    print(f"whetstone evaluate  {own.success:.1%} (95 % interval {low:.1%} to {high:.1%}, {own.episodes} episodes)")
    print(f"vLLM, tools=        {served.success:.1%} ({'within' if low <= served.success <= high else 'OUTSIDE'})")


if __name__ == "__main__":
    main()
