"""Models as files, read back as they were fitted; other files are refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from scaling.models import model_of, run_at
from xmem.errors import TraceError
from xmem.scaling import is_model_file, read_model, write_model


@pytest.fixture
def file(tmp_path: Path) -> Path:
    traces = [({"batch": batch}, run_at(batch).write(tmp_path / f"{batch}.json.gz")) for batch in (2, 3)]
    write_model(tmp_path / "model.xmem", traces, ["python", "train.py", "{batch}"])
    return tmp_path / "model.xmem"


def test_a_model_is_read_back(file: Path) -> None:
    assert is_model_file(file)
    model, fitted = read_model(file), model_of(2, 3)
    assert [dict(sample.point) for sample in model.samples] == [{"batch": 2}, {"batch": 3}]
    assert (model.polynomials.coefficients == fitted.polynomials.coefficients).all()
    assert model.at(batch=9).workload.size_bytes.tolist() == fitted.at(batch=9).workload.size_bytes.tolist()


def test_nothing_is_left_of_a_model_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be written"):
        write_model(tmp_path / "model.xmem", [({"batch": 2}, tmp_path / "missing.json")])
    assert list(tmp_path.iterdir()) == []


def rewritten(file: Path, **changes: object) -> Path:
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["model.json"] = json.dumps({**json.loads(members["model.json"]), **changes}).encode()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file


def test_damaged_and_newer_models_are_refused(file: Path) -> None:
    whole = file.read_bytes()
    with pytest.raises(TraceError, match="format 2, not 1"):
        read_model(rewritten(file, format=2))
    with pytest.raises(TraceError, match="or damaged"):
        read_model(rewritten(file, format=1, samples=[{"trace": "gone", "point": {"batch": 2}}]))
    file.write_bytes(whole[:200])
    assert not is_model_file(file)
    with pytest.raises(TraceError, match="not a fitted model"):
        read_model(file)
    file.write_text("{}")
    assert not is_model_file(file)
