"""Are the weights of a run those of another commit, to the last bit? Short runs of each kind, and what they came to.

    python benchmarks/same_weights.py                       # what this commit trains
    python benchmarks/same_weights.py --against FILE        # and whether it is what another commit trained

Runs as a user starts them, so that nothing of the inside has to be the same. Arithmetic differs between machines and
builds of PyTorch: compare what one machine made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors import safe_open

STAGE = "reinforcement"
"""What a recipe calls the stage of reinforcement."""
SHORT = ["supervised.steps=80", f"{STAGE}.steps=2", f"{STAGE}.tasks_per_step=8", "evaluation.episodes=4"]
RUNS = {
    "demo": ["demo"],
    "asynchronous": ["decoupled-ppo", f"{STAGE}.deterministic=true"],
    "critic": ["ppo"],
    "preference": ["online-dpo"],
    "adapters": ["demo", "policy.lora={rank: 4}"],
}
ALWAYS = ["ablations=null"]


def weights_of(folder: Path) -> str:
    """One checksum over every tensor of a model folder, by name."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.safetensors")):
        with safe_open(file, framework="numpy") as tensors:
            for name in sorted(tensors.keys()):
                array = tensors.get_tensor(name)
                digest.update(f"{name} {array.dtype} {array.shape} ".encode())
                digest.update(array.tobytes())
    return digest.hexdigest()


def trained(words: list[str]) -> str:
    """The weights a short run of a recipe ends with."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        said = [sys.executable, "-m", "whetstone.cli.main", "train", *words, *SHORT, *ALWAYS, "--run-dir", str(run)]
        done = subprocess.run(said, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(words)}: {done.stdout[-500:]}{done.stderr[-1500:]}")
        last = max((path for path in (run / "checkpoints").iterdir() if path.is_dir()), key=lambda p: p.stat().st_mtime)
        return weights_of(last)


def main() -> None:
    """Train, print and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="what another commit printed")
    given = parser.parse_args()
    found = {name: trained(words) for name, words in RUNS.items()}
    print(json.dumps(found, indent=1))
    if given.against is not None:
        expected = json.loads(given.against.read_text())
        other = [name for name in found if found[name] != expected[name]]
        sys.exit(f"other weights: {', '.join(other)}" if other else 0)


if __name__ == "__main__":
    main()
