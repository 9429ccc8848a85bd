"""Environment on this machine, of Harbor's base class; requires the package `harbor`."""

import shutil
import subprocess

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities


class MachineEnvironment(BaseEnvironment):
    """Commands of this machine in the folder of the trial."""

    @staticmethod
    def type():
        return "machine"

    @property
    def capabilities(self):
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self):
        if not self.task_env_config.docker_image:
            raise ValueError("an image is required")

    async def start(self, force_build):
        (self.trial_paths.trial_dir / "files").mkdir()

    async def stop(self, delete):
        shutil.rmtree(self.trial_paths.trial_dir / "files")

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        done = subprocess.run(  # noqa: ASYNC221
            ["bash", "-c", command],
            cwd=self.trial_paths.trial_dir / "files",
            capture_output=True,
            text=True,
            check=False,
        )
        return ExecResult(stdout=done.stdout, stderr=done.stderr, return_code=done.returncode)

    async def upload_file(self, source_path, target_path):
        shutil.copyfile(source_path, target_path)

    async def download_file(self, source_path, target_path):
        shutil.copyfile(source_path, target_path)

    async def upload_dir(self, source_dir, target_dir):
        raise NotImplementedError

    async def download_dir(self, source_dir, target_dir):
        raise NotImplementedError
