"""Who may read what xMem writes: outputs as the user's umask says, its own folders nobody else."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_line import xmem_fast
from xmem.cudnn.cache import PlanCache
from xmem.files import system
from xmem.files.cache import make_private
from xmem.files.scratch import scratch_folder
from xmem.sweep.store import Store
from xmem.testing.trace_builder import TraceBuilder

pytestmark = pytest.mark.skipif(system.IS_WINDOWS, reason="modes are those of POSIX")


@pytest.fixture(params=[0o022, 0o077, 0o007], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """A umask of the user."""
    before = os.umask(request.param)
    yield int(request.param)
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def a_trace(folder: Path) -> Path:
    trace = TraceBuilder().with_metadata(device_requests=1, iterations=1, versions={"torch": "2.13.0"})
    trace.iteration(0, 0, 200).operator("aten::mul", 1, 99).alloc(0x1000, 3 << 20, 2)
    return trace.annotation("Optimizer.step#SGD.step", 110, 120).write(folder / "trace.json")


OUTPUTS: dict[str, Callable[[Path, Path], tuple[object, ...]]] = {
    "estimate.json": lambda trace, output: ("estimate", trace, "-o", output),
    "page.html": lambda trace, output: ("estimate", trace, "--html", output),
    "report.html": lambda trace, output: ("report", trace, "-o", output),
    "snapshot.pickle": lambda trace, output: ("report", trace, "--format", "memory_viz", "-o", output),
    "rows.csv": lambda trace, output: ("sweep", trace.with_name("spec.toml"), "-o", output),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_are_as_the_umask_says(name: str, umask: int, tmp_path: Path) -> None:
    trace = a_trace(tmp_path)
    (tmp_path / "spec.toml").write_text('[job]\ntrace = "trace.json"\n[grid]\ngpu = ["t4"]\n')
    output = tmp_path / name
    result = xmem_fast(*OUTPUTS[name](trace, output))
    assert result.exit_code in (0, 1), result.stderr
    assert mode(output) == 0o666 & ~umask
    state = tmp_path / ".xmem-sweep"
    assert state.is_dir() == (name == "rows.csv")
    if state.is_dir():
        assert mode(state) == 0o700 & ~umask


def test_caches_are_private_down_from_the_first_folder_that_was_missing(umask: int, tmp_path: Path) -> None:
    file = tmp_path / "cache" / "xmem-fast" / "deep" / "plans.sqlite3"
    PlanCache("9.20", "a GPU", file).write({"a": ()})
    assert file.is_file()
    assert mode(file) & ~(0o666 & ~umask) == 0
    for folder in (file.parent, file.parent.parent, file.parent.parent.parent):
        assert mode(folder) == 0o700 & ~umask


def test_rows_of_a_sweep_are_in_a_private_folder(umask: int, tmp_path: Path) -> None:
    path = tmp_path / ".xmem-sweep" / "rows.sqlite"
    with Store(path, "identity"):
        assert mode(path.parent) == 0o700 & ~umask
        assert mode(path) & 0o022 == 0


@pytest.mark.usefixtures("umask")
def test_private_folders_of_runs(tmp_path: Path) -> None:
    with scratch_folder(parent=tmp_path) as folder:
        assert mode(folder) == 0o700
        assert mode(folder / "owner") & 0o077 == 0


def test_a_folder_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o755)
    make_private(folder / "own")
    make_private(folder)
    assert mode(folder) == 0o755
    assert mode(folder / "own") == 0o700
