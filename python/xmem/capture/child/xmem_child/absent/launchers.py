"""Launchers: what would start all ranks of a node starts the one that this process stands for.

Sources: ``torch.distributed.launcher.api.launch_agent`` of torch 2.6 to 2.13, for ``torchrun`` and
``accelerate launch``; ``deepspeed.launcher.runner.main`` of DeepSpeed 0.19.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType
from typing import Any

from ..following_imports import after_import


def follow_launchers() -> None:
    """Patch launchers when they are imported."""
    after_import("torch.distributed.launcher.api", _follow_torchrun)
    after_import("deepspeed.launcher.runner", _follow_deepspeed)


def _follow_torchrun(module: ModuleType) -> None:
    module.launch_agent = _launch_one  # type: ignore[attr-defined]


def _follow_deepspeed(module: ModuleType) -> None:
    def main(args: Any = None) -> None:
        given = module.parse_args(args)
        words = [] if given.no_python else [sys.executable, "-u", *(["-m"] if given.module else [])]
        local = [] if given.no_local_rank else [f"--local_rank={os.environ['LOCAL_RANK']}"]
        sys.exit(subprocess.call([*words, given.user_script, *local, *given.user_args]))

    module.main = main  # type: ignore[attr-defined]


def _launch_one(config: Any, entrypoint: Any, args: list[Any], **_: Any) -> dict[int, Any]:
    """Stand in for ``torch.distributed.launcher.api.launch_agent``."""
    local = os.environ["LOCAL_RANK"]
    os.environ.update(
        TORCHELASTIC_RUN_ID=str(config.run_id or "1"),
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS=str(config.max_restarts),
        TORCHELASTIC_USE_AGENT_STORE="False",
        ROLE_NAME=str(config.role),
    )
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if callable(entrypoint):
        return {int(local): entrypoint(*args)}
    words = [str(entrypoint), *(str(word).replace("${local_rank}", local) for word in args)]
    if status := subprocess.call(words):
        sys.exit(status)
    return {}
