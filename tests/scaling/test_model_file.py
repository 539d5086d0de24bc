"""Models as files, read back as they were fitted; other files are refused."""

from __future__ import annotations

import json
import random
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from scaling.models import model_of, run_at
from xmem.errors import TraceError
from xmem.files.model_archive import is_model_file
from xmem.scaling import read_model, write_model


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


def test_a_file_that_cannot_be_read_is_no_model(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert not is_model_file(file)


def test_the_command_is_kept_without_its_secrets(tmp_path: Path) -> None:
    trace = run_at(2).write(tmp_path / "2.json")
    command = ["train.py", "--token", "x", "{batch}"]
    write_model(tmp_path / "model.xmem", [({"batch": 2}, trace)], command)
    with zipfile.ZipFile(tmp_path / "model.xmem") as archive:
        assert json.loads(archive.read("model.json"))["command"] == ["train.py", "--token", "***", "{batch}"]


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


def entries(count: int, trace: str = "traces/{}.json") -> list[dict[str, object]]:
    return [{"trace": trace.format(number), "point": {"batch": number + 1}} for number in range(count)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": entries(3000, "traces/0-2.json.gz")}, "3000 samples are too many, or share a trace"),
        ({"samples": [{"trace": "traces/0-2.json.gz", "point": 0.5}]}, "point must be an object"),
        ({"samples": [{"trace": "traces/0-2.json.gz", "point": {"batch": 10**9 + 1}}]}, "no dimension"),
        ({"samples": [{"trace": "traces/0-2.json.gz", "point": {"batch": True}}]}, "a whole number"),
        ({"samples": [{"trace": "traces/0-2.json.gz", "point": {"\x1b[2J": 2}}]}, "no dimension"),
        (
            {"samples": [{"trace": "traces/0-2.json.gz", "point": {"width": 2}}]},
            "does not have the dimensions",
        ),
        ({"samples": 5}, "samples must be a list"),
        ({"format": [[1]]}, "format"),
    ],
)
def test_odd_models_are_refused_with_one_error(file: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        read_model(rewritten(file, **changes))
    assert caught.value.path == str(file)


def test_a_model_that_unpacks_without_an_end_is_refused(file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "model.json", json.dumps({"format": 1, "dimensions": ["batch"], "samples": entries(1)})
        )
        with archive.open("traces/0.json", "w", force_zip64=True) as member:
            for _ in range(300):
                member.write(b" " * (1 << 20))
    with pytest.raises(TraceError, match="would unpack to 314,572,800"):
        read_model(file)


@pytest.mark.parametrize("seed", range(40))
def test_a_model_with_broken_bytes_is_read_or_refused(file: Path, seed: int) -> None:
    chance = random.Random(seed)
    content = bytearray(file.read_bytes())
    for _ in range(3):
        content[chance.randrange(len(content) - 60, len(content))] = chance.randrange(256)
    file.write_bytes(content)
    with suppress(TraceError):
        if is_model_file(file):
            read_model(file)


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
