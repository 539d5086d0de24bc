"""Asking cuDNN: the library to ask, its answers, what PyTorch makes of them, and what happens without.

``XMEM_TEST_CUDNN`` names a ``libcudnn.so.9`` for the tests that ask a real one; they are skipped without.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from xmem.cudnn import libraries, planner
from xmem.cudnn.cache import PlanCache, parse_plans
from xmem.cudnn.libraries import CudnnLibrary, bundled_with, find_libraries, library_at, way_out
from xmem.cudnn.planner import Planner, PlannerError, PlannerSettings, sizes_tried
from xmem.cudnn.planner_process import strides
from xmem.cudnn.problems import ConvolutionProblem, Operation
from xmem.cudnn.shares import kind_of, tensor_bytes, typical_sizes
from xmem.cudnn.workspaces import Workspaces, workspaces_for
from xmem.devices.gpus import Device, devices, find_device
from xmem.errors import ConfigError

RTX_3060 = find_device("rtx-3060")
REAL = os.environ.get("XMEM_TEST_CUDNN")
needs_cudnn = pytest.mark.skipif(REAL is None, reason="no libcudnn.so.9: set XMEM_TEST_CUDNN")

VGG = ConvolutionProblem(
    Operation.FORWARD, "float32", (8, 64, 86, 86), (64, 64, 3, 3), (8, 64, 86, 86), (1, 1), (1, 1), (1, 1)
)
TENSOR_CORE, DOWN_CONVERT, NONDETERMINISTIC = 0, 1, 4


@pytest.mark.parametrize(
    ("dtype", "settings", "expected"),
    [
        ("float32", PlannerSettings(), (600, 300, 0)),
        ("float32", PlannerSettings(allow_tf32=False), (300, 0)),
        ("float32", PlannerSettings(deterministic=True), (600, 0)),
        ("float16", PlannerSettings(), (900, 600, 300, 0)),
        ("float16", PlannerSettings(allow_tf32=False), (300, 0)),
    ],
)
def test_plans_are_left_out_as_pytorch_does(
    dtype: str, settings: PlannerSettings, expected: tuple[int, ...]
) -> None:
    plans = (
        (900, (DOWN_CONVERT,)),
        (600, (TENSOR_CORE,)),
        (300, (NONDETERMINISTIC,)),
        (600, (TENSOR_CORE, 9)),
        (0, ()),
    )
    assert sizes_tried(plans, dtype, settings) == expected


@pytest.mark.parametrize(
    ("torch_version", "version", "cuda_major"),
    [((2, 4), (9, 1, 0), 12), ((2, 6), (9, 1, 0), 12), ((2, 9), (9, 10, 2), 12), ((2, 13), (9, 20, 0), 13)],
)
def test_the_cudnn_of_a_release(
    torch_version: tuple[int, int], version: tuple[int, int, int], cuda_major: int
) -> None:
    bundled = bundled_with(torch_version)
    assert (bundled.version, bundled.cuda_major) == (version, cuda_major)


def test_the_nearest_installed_library_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = [(9, 20, 0), (9, 8, 0), (8, 9, 2)]
    installed = [CudnnLibrary(Path(str(version)), version) for version in versions]
    monkeypatch.delenv(libraries.LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr(libraries, "installed_libraries", lambda: installed)
    assert find_libraries((2, 12)) == (installed[0], installed[1])
    assert find_libraries((2, 8)) == (installed[1], installed[0])
    assert find_libraries((2, 3))[0] == installed[1]  # 8.9 would be the job's own, and cannot
    monkeypatch.setattr(libraries, "installed_libraries", list)
    assert find_libraries((2, 12)) == ()


def test_the_libraries_of_wheels_are_found_newest_cuda_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path / name) for name in ("none", "first", "second")])
    for name, wheels in {"first": ["cu12-9.10.2.21"], "second": ["cu12-9.1.0.70", "cu13-9.20.0.48"]}.items():
        library = tmp_path / name / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
        library.parent.mkdir(parents=True)
        library.touch()
        for wheel in wheels:
            (tmp_path / name / f"nvidia_cudnn_{wheel}.dist-info").mkdir()
    (tmp_path / "none" / "nvidia_cudnn_cu13-9.30.0.1.dist-info").mkdir(parents=True)  # its library is deleted
    place = Path("nvidia", "cudnn", "lib", "libcudnn.so.9")
    assert libraries.installed_libraries() == [
        CudnnLibrary(tmp_path / "second" / place, (9, 20, 0), 13),
        CudnnLibrary(tmp_path / "first" / place, (9, 10, 2), 12),  # the first on the path is what is imported
    ]


def test_the_library_that_is_named_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    named.parent.mkdir(parents=True)
    named.touch()
    (tmp_path / "nvidia_cudnn_cu12-9.1.0.70.dist-info").mkdir()
    monkeypatch.setenv(libraries.LIBRARY_VARIABLE, str(named))
    assert find_libraries((2, 12)) == (CudnnLibrary(named, (9, 1, 0)),)
    monkeypatch.setenv(libraries.LIBRARY_VARIABLE, "")
    assert find_libraries((2, 12)) == ()
    with pytest.raises(ConfigError, match="libcudnn"):
        library_at(tmp_path / "nothing.so")


def test_libraries_beside_it_are_loaded_first(tmp_path: Path) -> None:
    blas = tmp_path / "nvidia" / "cublas" / "lib" / "libcublasLt.so.12"
    blas.parent.mkdir(parents=True)
    blas.touch()
    named = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    assert blas in CudnnLibrary(named, None).loaded_before()


def test_what_was_said_is_kept_by_library_and_device(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "plans.sqlite3"
    kept = PlanCache("9.20", "a GPU", file)
    assert kept.read(["a"]) == {}
    kept.write({"a": ((600, (0, 5)), (0, ())), "b": ()})
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert kept.read(["a", "b", "c"]) == {"a": ((600, (0, 5)), (0, ())), "b": ()}
    assert PlanCache("9.8", "a GPU", file).read(["a"]) == {}
    assert PlanCache("9.20", "another GPU", file).read(["a"]) == {}


def test_many_may_write_at_once(tmp_path: Path) -> None:
    file = tmp_path / "plans.sqlite3"

    def write(number: int) -> None:
        PlanCache("9.20", "a GPU", file).write({f"{number} {n}": ((n, ()),) for n in range(20)})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(16)))
    keys = [f"{number} {n}" for number in range(16) for n in range(20)]
    assert len(PlanCache("9.20", "a GPU", file).read(keys)) == 320


def test_a_cache_that_cannot_be_used_keeps_nothing(tmp_path: Path) -> None:
    file = tmp_path / "plans.sqlite3"
    file.write_text("no database")
    kept = PlanCache("9.20", "a GPU", file)
    kept.write({"a": ((1, ()),)})
    assert kept.read(["a"]) == {}
    file.unlink()
    PlanCache("9.20", "a GPU", file).write({"a": ((1, ()),)})
    with sqlite3.connect(file) as database:
        database.execute("UPDATE plans SET plans = '[[-1, []]]'")
    assert kept.read(["a"]) == {}


@pytest.mark.parametrize(
    "said", [None, {}, [1], [[1]], [[1, 2]], [["1", []]], [[1, ["a"]]], [[-1, []]], [[True, []]]]
)
def test_answers_that_are_no_plans_are_refused(said: object) -> None:
    with pytest.raises(ValueError, match="plan"):
        parse_plans(said)


def pretending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> Planner:
    """A planner whose child process runs this program."""
    script = tmp_path / "child.py"
    script.write_text("import json, sys\nsys.stdin.readline()\n" + program)
    monkeypatch.setattr(planner, "_PROGRAM", script)
    library = tmp_path / "libcudnn.so.9"
    library.touch()
    return Planner.for_device(library_at(library), RTX_3060)


ANSWERING = "print('{\"version\": 92000}', flush=True)\n"


def test_each_problem_is_asked_about_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = ANSWERING + (
        "for line in sys.stdin:\n"
        f"    open({str(tmp_path / 'asked')!r}, 'a').write(line)\n"
        "    print(json.dumps({'plans': [[512, [0]], [0, []]]}), flush=True)\n"
    )
    asked = pretending(tmp_path, monkeypatch, program)
    for _ in range(2):
        assert asked.plans([VGG, VGG], tmp_path / "cache") == {VGG: ((512, (0,)), (0, ()))}
    assert (tmp_path / "asked").read_text() == VGG.key() + "\n"
    assert asked.version() == "9.20.0"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("sys.exit('Cannot load symbol cublasLtCreate')", "status 1: Cannot load symbol cublasLtCreate"),
        ("import os; os.abort()", "status -6"),
        ('print(\'{"error": "too old"}\', flush=True)', "too old"),
        ("print('hello', flush=True)", "it wrote 'hello'"),
        ("print('[1]', flush=True)", "it wrote '\\[1\\]'"),
        (ANSWERING + "sys.stdin.readline(); print('{\"plans\": 3}', flush=True)", "not a list of plans"),
        (ANSWERING + "sys.stdin.readline(); sys.exit(3)", "status 3"),
    ],
)
def test_a_library_that_fails_says_why_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    monkeypatch.setattr("xmem.cudnn.libraries.installed_libraries", lambda: ())  # `make demo` installs one
    failing = pretending(tmp_path, monkeypatch, program)
    with pytest.raises(PlannerError, match=message) as raised:
        failing.plans([VGG], tmp_path / "cache")
    assert "pip install xmem-fast[cudnn]" in str(raised.value)
    answer = Workspaces(RTX_3060, (2, 12), (failing.library,)).ask((VGG,), PlannerSettings())
    assert answer.tried == {VGG: typical_sizes(VGG, (8, 6), PlannerSettings())}
    assert "typical" in answer.source


def test_where_a_library_fails_the_next_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, whole = (CudnnLibrary(tmp_path / name / "libcudnn.so.9", (9, 20, 0)) for name in ("new", "old"))
    for library in (broken, whole):
        library.path.parent.mkdir()
        library.path.touch()
    program = ANSWERING + (
        "sys.argv[1].endswith('new/libcudnn.so.9') and sys.exit('no engine')\n"
        "for line in sys.stdin: print(json.dumps({'plans': [[512, [0]]]}), flush=True)\n"
    )
    pretending(tmp_path, monkeypatch, program)
    monkeypatch.setenv("XMEM_CACHE", str(tmp_path))
    answer = Workspaces(RTX_3060, (2, 12), (broken, whole)).ask((VGG,), PlannerSettings())
    assert answer.tried == {VGG: (512,)}
    assert answer.source.startswith("cuDNN 9.20.0 planned the convolutions, the job's own; ")
    assert "new/libcudnn.so.9 cannot plan convolutions" in answer.source


def test_what_is_installed_is_not_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = CudnnLibrary(tmp_path / "libcudnn.so.9", (9, 28, 0), 13)
    tested = CudnnLibrary(tmp_path / "libcudnn.so.9", libraries.TESTED, 13)
    elsewhere = CudnnLibrary(tmp_path / "other.so", None)
    monkeypatch.setattr(libraries, "installed_libraries", list)
    assert "pip install xmem-fast[cudnn]" in way_out(elsewhere)
    monkeypatch.setattr(libraries, "installed_libraries", lambda: [newest])
    assert "pip install 'nvidia-cudnn-cu13==9.20.0.*'" in way_out(newest)
    assert "pip install" not in way_out(elsewhere)
    monkeypatch.setattr(libraries, "installed_libraries", lambda: [tested])
    assert "pip install" not in way_out(tested)


def test_the_extras_end_with_what_was_tested() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    major, minor, _ = libraries.TESTED
    for extra, cuda_major in (("cudnn", 12), ("cudnn-cu13", 13)):
        wheels = project["optional-dependencies"][extra]
        assert f"nvidia-cudnn-cu{cuda_major}>=9.8,<{major}.{minor + 1}" in wheels


def test_without_a_library_the_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(libraries.LIBRARY_VARIABLE, "")
    found = workspaces_for(RTX_3060, (2, 6))
    assert found is not None
    answer = found.ask((VGG,), PlannerSettings())
    assert (answer.tried[VGG], answer.version, answer.exact) == (
        typical_sizes(VGG, (8, 6), PlannerSettings()),
        "",
        False,
    )
    assert "9.1.0" in answer.source
    assert workspaces_for(find_device("mi300x"), (2, 6)) is None


def test_typical_workspaces_are_shares_of_the_tensors() -> None:
    x_bytes, w_bytes = 8 * 64 * 86 * 86 * 4, 64 * 64 * 9 * 4
    assert tensor_bytes(VGG) == 2 * x_bytes + w_bytes
    typical, most, least = typical_sizes(VGG, (8, 6), PlannerSettings())
    assert least == 0 < typical < most < 2 * tensor_bytes(VGG)
    assert typical_sizes(VGG, (8, 6), PlannerSettings(allow_tf32=False)) == (0,)
    assert typical_sizes(VGG, (8, 8), PlannerSettings()) == (typical, most, least)  # as 8.6 does


@pytest.mark.parametrize(
    ("x", "w", "y", "kind"),
    [
        ((2, 64, 8, 8), (64, 64, 3, 3), (2, 64, 8, 8), "wide"),
        ((2, 64, 8, 8), (32, 64, 1, 1), (2, 32, 8, 8), "1x1"),
        ((2, 64, 8, 8), (64, 8, 3, 3), (2, 64, 8, 8), "grouped"),
    ],
)
def test_the_kind_of_a_convolution(
    x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], kind: str
) -> None:
    problem = ConvolutionProblem(
        Operation.FORWARD, "bfloat16", x, w, y, (1, 1), (1, 1), (1, 1), channels_last=True
    )
    assert kind_of(problem) == f"forward {kind} float16 channels_last"


def test_strides_of_both_orders() -> None:
    assert strides([2, 3, 4, 5], channels_last=False) == [60, 20, 5, 1]
    assert strides([2, 3, 4, 5], channels_last=True) == [60, 1, 15, 3]


@needs_cudnn
@pytest.mark.parametrize("device", [d for d in devices() if d.attributes], ids=lambda device: device.slug)
def test_a_real_library_accepts_every_device(device: Device, tmp_path: Path) -> None:
    assert REAL is not None
    plans = Planner.for_device(library_at(REAL), device).plans([VGG], tmp_path / "cache")[VGG]
    assert plans
    assert min(size for size, _ in plans) == 0


@needs_cudnn
def test_a_problem_that_cannot_be_has_no_plans(tmp_path: Path) -> None:
    assert REAL is not None
    impossible = ConvolutionProblem(
        Operation.FORWARD, "float32", (2, 16, 4, 4), (9, 17, 1, 1), (3, 9, 4, 4), (1, 1), (0, 0), (1, 1)
    )
    asked = Planner.for_device(library_at(REAL), RTX_3060)
    assert asked.plans([impossible], tmp_path / "cache") == {impossible: ()}


def child(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(planner._PROGRAM), *map(str, arguments)],
        input="{}\n",
        capture_output=True,
        text=True,
        check=False,
    )


needs_helper = pytest.mark.skipif(libraries.helper_program() is None, reason="built on Linux only")


@needs_helper
def test_the_child_says_what_it_cannot_load() -> None:
    done = child("/nowhere/libcudnn.so.9", libraries.helper_program(), "")
    assert done.returncode == 0
    assert "/nowhere/libcudnn.so.9" in done.stdout
    assert done.stdout.startswith('{"error":')


def test_a_helper_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = child("libcudnn.so.9", tmp_path / "helper", "")
    assert done.stdout.startswith('{"error":')
    assert str(tmp_path / "helper") in done.stdout


def test_a_helper_that_dies_ends_the_child_with_its_status(tmp_path: Path) -> None:
    helper = tmp_path / "helper"
    helper.write_text("#!/bin/sh\necho no symbol cublasLtCreate >&2\nkill -6 $$\n")
    helper.chmod(0o755)
    done = child("libcudnn.so.9", helper, "")
    assert (done.stdout, done.returncode) == ("", 128 + 6)
    assert "no symbol cublasLtCreate" in done.stderr


def test_without_a_helper_nothing_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libcudnn.so.9"
    library.touch()
    monkeypatch.setattr(planner, "helper_program", lambda: None)
    with pytest.raises(PlannerError, match="built only on Linux"):
        Planner.for_device(library_at(library), RTX_3060).plans([VGG], tmp_path / "cache")
