"""Telemetry of dependencies: off by default, and unchanged if the user set it."""

import json
import os
import subprocess
import sys

PROGRAM = """
import json, os, sys
import whetstone
from huggingface_hub import constants
seen = {name: os.environ.get(name) for name in sys.argv[1:]}
print(json.dumps([seen, constants.HF_HUB_DISABLE_TELEMETRY]))
"""
OFF = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "WANDB_ERROR_REPORTING": "false",
}


def seen_after_import(environment):
    """Import Whetstone in a new process; return its variables and the decision of huggingface_hub."""
    clean = {name: value for name, value in os.environ.items() if name not in OFF}
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, *OFF], env={**clean, **environment}, capture_output=True, text=True, check=True
    )
    return json.loads(answer.stdout)


def test_telemetry_of_dependencies_is_off_after_import():
    assert seen_after_import({}) == [OFF, True]


def test_telemetry_that_the_user_turned_on_stays_on():
    seen, hub_is_off = seen_after_import({"HF_HUB_DISABLE_TELEMETRY": "0", "RAY_USAGE_STATS_ENABLED": "1"})
    assert (seen["RAY_USAGE_STATS_ENABLED"], hub_is_off) == ("1", False)
