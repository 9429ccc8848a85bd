"""The launch files parse, and every command, option and key they name exists."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from whetstone.cli.main import COMMANDS, cli
from whetstone.recipe.settings import Recipe

LAUNCH = Path(__file__).parents[2] / "examples" / "launch"
SCRIPTS = sorted(LAUNCH.glob("*.sbatch"))
IN_TREE = "scale" in Recipe.model_fields
"""Whether recipes know of `scale` here."""


def commands_of(text):
    """Return the words of every `whetstone` call in a script or manifest."""
    joined = re.sub(r"\\\n\s*", " ", text)
    joined = re.sub(r"\n\s+(?=\$\()", " ", joined)
    return [line.split() for line in re.findall(r"whetstone (?:train|plan|doctor|evaluate)\b[^\n]*", joined)]


def test_launch_files_are_found():
    assert {path.name for path in LAUNCH.iterdir()} >= {
        "whetstone.sbatch",
        "whetstone-ray.sbatch",
        "eight-gpus.yaml",
        "rayjob.yaml",
        "Containerfile",
    }


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_bash_and_request_the_slurm_resources_they_use(path):
    checked = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    text = path.read_text()
    requested = dict(
        line.removeprefix("#SBATCH --").partition("=")[::2] for line in text.splitlines() if "#SBATCH" in line
    )
    assert "requeue" in requested
    assert requested["signal"].startswith("TERM@")
    assert requested["open-mode"] == "append"
    assert 'scontrol requeue "$SLURM_JOB_ID"' in text


@pytest.mark.parametrize("path", sorted(LAUNCH.iterdir()), ids=lambda path: path.name)
def test_commands_and_options_exist(path):
    for words in commands_of(path.read_text()):
        name = words[1]
        assert name in COMMANDS
        command = cli.get_command(None, name)
        known = {option for parameter in command.params for option in parameter.opts}
        for option in (word for word in words if word.startswith("--")):
            assert option.strip("`)") in known, f"{path.name}: {name} has no {option}"


def keys_of(model, keys, above=""):
    for key, value in keys.items():
        field = model.model_fields.get(key)
        assert field is not None, f"no key {above}{key}"
        below = field.annotation
        if isinstance(value, dict) and hasattr(below, "model_fields"):
            keys_of(below, value, f"{above}{key}.")


def test_keys_of_the_cluster_recipe_exist():
    keys = yaml.safe_load((LAUNCH / "eight-gpus.yaml").read_text())
    keys.pop("extends")
    scale = keys.pop("scale")
    keys_of(Recipe, keys)
    if not IN_TREE:
        pytest.skip("recipes have no key scale in this tree")
    keys_of(Recipe, {"scale": scale})
    assert scale["engine_replicas"] * scale["replica_gpus"] + scale["learner_processes"] == 8


JOB = {
    "entrypoint", "submissionMode", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished",
    "activeDeadlineSeconds", "rayClusterSpec", "runtimeEnvYAML", "suspend", "jobId", "clusterSelector", "metadata",
    "submitterPodTemplate", "entrypointNumCpus", "entrypointNumGpus", "entrypointResources", "submitterConfig",
    "deletionStrategy", "managedBy", "preRunningDeadlineSeconds",
}  # fmt: skip
CLUSTER = {
    "rayVersion", "enableInTreeAutoscaling", "autoscalerOptions", "headGroupSpec", "workerGroupSpecs", "suspend",
    "headServiceAnnotations", "gcsFaultToleranceOptions", "managedBy", "authOptions", "upgradeStrategy",
}  # fmt: skip
GROUP = {
    "groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template", "numOfHosts",
    "idleTimeoutSeconds", "suspend", "scaleStrategy", "resources", "labels", "serviceType", "enableIngress",
    "headService",
}  # fmt: skip
"""Fields of `ray.io/v1` as KubeRay's API reference has them."""


def test_manifest_has_the_fields_of_kuberay():
    job = yaml.safe_load((LAUNCH / "rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    assert set(spec) <= JOB
    cluster = spec["rayClusterSpec"]
    assert set(cluster) <= CLUSTER
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        assert set(group) <= GROUP
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_image_copies_existing_files_and_installs_existing_lock_files():
    lines = (LAUNCH / "Containerfile").read_text()
    root = Path(__file__).parents[2]
    for words in re.findall(r"^COPY (.+)$", lines, flags=re.M):
        *sources, _ = words.split()
        assert all((root / source).exists() for source in sources)
    assert 'ENTRYPOINT ["whetstone"]' in lines
    locks = re.findall(r"-r (requirements/\w+\.txt)", lines)
    assert "requirements/base.txt" in locks
    assert all((root / lock).is_file() for lock in locks)
