"""Loaded by every Python process of a captured command; waits for the script to import torch, or to fail.

The parent puts this folder first in ``PYTHONPATH``, so ``site`` finds this module at start-up. It steps aside
for the ``sitecustomize`` that it shadows, leaves ``sys.path`` as it would have been, and costs one string
comparison an import until torch appears. It is standard library only: the interpreter need not know xmem.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import importlib
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

_FOLDER = Path(__file__).resolve().parent
# What the capture and the phantom GPU tell this process, which the script may clear before it imports torch.
_told = {name: value for name, value in os.environ.items() if name.startswith("XMEM_")}


def _load_shadowed_sitecustomize() -> None:
    """Import the ``sitecustomize`` that would have been found without us, if there is one."""
    ours = sys.modules.pop(__name__, None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault(__name__, ours)


def _load_child_package() -> ModuleType:
    """Import the package beside this file by its path, without leaving the folder in ``sys.path``."""
    if "xmem_child" in sys.modules:
        return sys.modules["xmem_child"]
    os.environ.update(_told)
    package = _FOLDER / "xmem_child"
    spec = importlib.util.spec_from_file_location(
        "xmem_child", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["xmem_child"] = module
    spec.loader.exec_module(module)
    return module


def _note_failure(error: BaseException) -> None:
    _load_child_package()
    importlib.import_module("xmem_child.records.failures").note(error, ends_process=True)


def _follow_failures() -> None:
    """Tell the parent about the exception that ends this process, however it is shown."""
    show, leave = sys.excepthook, sys.exit

    def note_and_show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _note_failure(error)
        show(kind, error, trace)

    def note_and_leave(status: object = None, /) -> NoReturn:
        # A script that shows its exception itself, as processes of torch.multiprocessing do.
        error = sys.exc_info()[1]
        if status not in (None, 0) and isinstance(error, Exception):
            _note_failure(error)
        leave(status)  # type: ignore[arg-type]

    def note_last() -> None:
        # Set by the interpreter before it calls the hook, which may have been replaced by then.
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            _note_failure(error)

    sys.excepthook, sys.exit = note_and_show, note_and_leave
    atexit.register(note_last)


class _TorchFinder:
    """Meta-path finder that lets the others find torch, and arranges for what follows its import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        spec = None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    break
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: object) -> None:
        # On the instance, so that everything else about torch's loader stays as it is.
        execute = loader.exec_module  # type: ignore[attr-defined]

        def exec_module(module: ModuleType) -> None:
            # Read once by torch's profiler library while it loads: keeps its own log lines off the script's
            # stderr.
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
            execute(module)
            sys.meta_path.remove(self)
            _load_child_package().install()

        loader.exec_module = exec_module  # type: ignore[attr-defined]


sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _FOLDER]


def _kill_daemons(workspace: str) -> None:
    """Kill processes of the capture that left its session (``xmem.capture.processes``)."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            number = int(process.name)
            if workspace.encode() in (process / "environ").read_bytes() and os.getsid(number) != os.getsid(0):
                os.kill(number, signal.SIGKILL)


def _end_with_the_capture() -> None:
    """End this process and its group when the capture is gone, which may have been killed.

    Its lock on the private folder is free then (``xmem.files.scratch``); until then a thread waits for it.
    """
    try:
        import fcntl

        workspace = json.loads(_told["XMEM_CAPTURE"])["workspace"]
        lock = os.open(Path(workspace) / "owner", os.O_RDWR)
    except (ImportError, OSError):  # no locks on this system, or on its file system
        return

    def wait() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
        except OSError:
            return
        _kill_daemons(workspace)
        os.killpg(0, signal.SIGKILL)

    _thread.start_new_thread(wait, ())


if "XMEM_CAPTURE" in _told:
    _end_with_the_capture()
    sys.meta_path.insert(0, _TorchFinder())
    _follow_failures()
_load_shadowed_sitecustomize()
