"""What adapters need to run a job: the project's code of a commit, an environment, and a phantom GPU."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from xmem.capture import Extent, PhantomMachine, World, capture, find_torch
from xmem.capture.made_weights import make_weights
from xmem.devices.gpus import find_device
from xmem.errors import CaptureError, ConfigError

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Ran:
    """What a command left.

    Attributes:
        output: What it printed.
        problem: Why there is no capture of it; empty if there is one. Its output may still hold its answer.
        allocated: Peak of allocated bytes by rank, as PyTorch counted it; empty without a capture.
        reserved: Peak of reserved bytes by rank, likewise.
    """

    output: str
    problem: str
    allocated: Mapping[int, int] = field(default_factory=dict)
    reserved: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Laboratory:
    """Where jobs run.

    Attributes:
        histories: Folder of bare clones ``OWNER/NAME``; what is missing is cloned.
        checkouts: Folder of the code of single commits.
        environments: Folder of virtual environments, one for each file of ``environments``.
        timeout_s: How long a job may take.
    """

    histories: Path
    checkouts: Path
    environments: Path
    timeout_s: float = 3600.0

    def history(self, repository: str) -> Path:
        """A bare clone of a public repository.

        Raises:
            ConfigError: It is not there and cannot be cloned.
        """
        folder = self.histories / repository
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            address = f"https://github.com/{repository}"
            done = subprocess.run(
                ["git", "clone", "--quiet", "--mirror", "--filter=blob:none", address, folder],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise ConfigError(
                    f"{address} cannot be cloned ({done.stderr.strip().splitlines()[-1]})",
                    f"put a bare clone of it at {folder}",
                )
        return folder

    def git(self, repository: str, *arguments: str) -> str:
        """What git says of a repository's history."""
        done = subprocess.run(
            ["git", "-C", self.history(repository), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout

    def code(self, repository: str, commit: str, paths: Sequence[str] = ()) -> Path:
        """The code of a commit, whole or some folders of it."""
        folder = self.checkouts / repository.replace("/", "+") / commit
        if not folder.exists():
            partial = folder.with_name(f"{commit}.partial")
            partial.mkdir(parents=True, exist_ok=True)
            archive = ["git", "-C", str(self.history(repository)), "archive", commit, *paths]
            packed = subprocess.run(archive, stdout=subprocess.PIPE, check=True)
            subprocess.run(["tar", "-x", "-C", partial], input=packed.stdout, check=True)
            partial.rename(folder)
        return folder

    def model(self, name: str, environment: str, dtype: str = "float32") -> Path:
        """A folder that ``from_pretrained`` loads, with weights that take no room.

        Args:
            name: A file of ``models``, which holds the config that the model's authors published, or a folder
                with the configs of its parts.
            environment: The one whose transformers or diffusers makes it.
            dtype: Of its tensors, where the config does not say it.
        """
        folder = self.checkouts / "models" / name
        if (HERE / "models" / name).is_dir():
            shutil.copytree(HERE / "models" / name, folder, dirs_exist_ok=True)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(HERE / "models" / f"{name}.json", folder / "config.json")
        for config in folder.rglob("config.json"):
            of_diffusers = '"_class_name"' in config.read_text()
            weights = config.with_name(
                "diffusion_pytorch_model.safetensors" if of_diffusers else "model.safetensors"
            )
            if not weights.exists():
                make_weights(config.parent, weights, self.python(environment), name, dtype)
        return folder

    def python(self, environment: str) -> str:
        """The Python of an environment.

        Raises:
            ConfigError: ``make`` has not made it.
        """
        python = self.environments / environment / "bin" / "python"
        if not python.exists():
            raise ConfigError(
                f"{python.parent.parent} is not there", f"run make .venv-scoreboard/{environment}/ready"
            )
        return str(python)

    def torch(self, environment: str) -> str:
        """Release of torch in an environment."""
        return _release(self.python(environment))

    def on_phantom(
        self,
        command: Sequence[str],
        gpu: str,
        *,
        strict: bool = False,
        capacity: float = 1.0,
        extent: Extent | None = None,
        variables: Mapping[str, str] | None = None,
        values: Mapping[str, float] | None = None,
        world: World | None = None,
        rank: int | None = None,
        folder: Path | None = None,
    ) -> Ran:
        """Run a command on a phantom GPU.

        Args:
            command: What to run.
            gpu: Name of the card.
            strict: Whether memory runs out as on the card.
            capacity: Share of the card's memory that there is.
            extent: How far; to its end by default.
            variables: Of the environment, beside this process's own.
            values: What reads of unknown values give, by ``FILE:LINE``.
            world: The distributed job of which only some ranks run.
            rank: The one to trace; by default the one that needs most.
            folder: Where it runs; the current one by default.
        """
        device = find_device(gpu)
        if capacity != 1.0:
            device = replace(device, total_memory_bytes=int(device.total_memory_bytes * capacity))
        with (
            contextlib.chdir(folder or Path.cwd()),
            tempfile.TemporaryDirectory(prefix="scoreboard-") as scratch,
            tempfile.TemporaryFile() as output,
        ):
            allocated, reserved = {}, {}
            try:
                captured = capture(
                    command,
                    Path(scratch) / "trace.json",
                    mode="phantom",
                    machine=PhantomMachine(
                        device,
                        count=1 if world is None else min(world.size, 8),
                        strict_capacity=strict,
                        values=values or {},
                    ),
                    world=world,
                    rank=rank,
                    extent=extent or Extent(until_end=True),
                    timeout_s=self.timeout_s,
                    stdout=output.fileno(),
                    env={**os.environ, **(variables or {})},
                )
                problem = ""
                ranks = captured.metadata["phantom"]["ranks"]
                allocated = {int(note["rank"]): _peak(note, "peak_allocated_bytes") for note in ranks}
                reserved = {int(note["rank"]): _peak(note, "peak_reserved_bytes") for note in ranks}
            except CaptureError as error:
                problem = str(error)
            output.seek(0)
            return Ran(output.read().decode(errors="replace"), problem, allocated, reserved)


def _peak(note: Mapping[str, Any], figure: str) -> int:
    """The largest of a rank's devices."""
    return max((int(row[figure]) for row in note["devices"]), default=0)


@cache
def _release(python: str) -> str:
    build = find_torch([python], dict(os.environ))
    if build is None:
        raise ConfigError(f"{python} has no torch", "make the environment again")
    return build.version
