"""``xmem-fast phantom-env``: an environment with the CUDA build of a script's PyTorch."""

from __future__ import annotations

import os
import shutil

import typer

from xmem.cli import options, output
from xmem.errors import ConfigError


def phantom_env(python: options.Python = None, as_json: options.Json = False) -> None:
    """Make an environment in which the phantom GPU runs, once, and print its Python.

    It has the CUDA build of the same PyTorch (about 3 GB to download, 5 GB on disk; no GPU and no driver are
    needed), and everything else of your environment.
    """
    from xmem.capture.overlay import make_overlay, require_possible

    require_possible()
    chosen = str(python) if python is not None else shutil.which("python") or shutil.which("python3")
    if chosen is None:
        raise ConfigError("there is no python on the PATH", "name one with --python")
    made = make_overlay(chosen, dict(os.environ))
    if as_json:
        output.print_json({"schema_version": 1, "python": str(made)})
        return
    typer.echo(str(made))
    output.note(f"run scripts with it: xmem-fast run --python {made} -- python train.py")
