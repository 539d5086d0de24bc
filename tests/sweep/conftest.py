from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from training_sample import MIB, training
from xmem.scaling import write_model

SpecWriter = Callable[..., Path]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A fitted model of the sample: its batch takes 3 MiB a sample."""
    traces = [
        ({"batch": batch}, training(3 * MIB * batch).write(tmp_path / f"batch{batch}.json"))
        for batch in (2, 3)
    ]
    path = tmp_path / "model.xmem"
    write_model(path, traces)
    return path


@pytest.fixture
def write_spec(tmp_path: Path, model: Path) -> SpecWriter:
    """Writes a spec about the model, or about a job of its own."""

    def write(tables: str, job: str = f'model = "{model.name}"') -> Path:
        path = tmp_path / "spec.toml"
        path.write_text(f"[job]\n{job}\n{tables}")
        return path

    return write
