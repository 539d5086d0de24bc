"""The machine fails us: files change while they are read, disks are full, readers go away.

Then there is a message, no traceback, and no half of a file.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import pickle
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import xmem
from training_sample import training
from xmem import _core
from xmem.errors import TraceError
from xmem.files.writing import write_whole

DONE, BAD_INPUT, USAGE, BROKEN_PIPE = 0, 3, 2, 141
TIME_LIMIT_S = 60
MIB = 1 << 20

needs_command = pytest.mark.skipif(
    importlib.util.find_spec("xmem.cli") is None, reason="the command is not built here"
)


def long_trace(size: int) -> bytes:
    """A trace of about so many bytes, all of them events."""
    event = b'{"ph":"X","cat":"python_function","name":"f","pid":1,"tid":1,"ts":1,"dur":1},\n'
    return b"[" + event * (size // len(event)) + event.rstrip(b",\n") + b"]"


def error_of(path: Path, progress: Callable[[int], None] | None = None) -> TraceError:
    with pytest.raises(TraceError) as caught:
        xmem.read_trace(path, progress=progress)
    assert caught.value.path == str(path)
    return caught.value


# Files that change while they are read. Progress is reported every 32 MiB, which is when the change happens.


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(long_trace(80 * MIB))
    size = path.stat().st_size

    def shrink(_bytes_read: int) -> None:
        os.truncate(path, 40 * MIB)

    error = error_of(path, shrink)
    assert "changed while it was being read" in error.message
    assert error.byte_offset == 40 * MIB
    path.write_bytes(long_trace(80 * MIB))
    with pytest.raises(TraceError, match=f"shorter while it was being read: it had {size} bytes"):
        _core.read_trace_file(str(path), [], shrink)


def test_a_file_that_grows_while_it_is_read_is_still_being_written(tmp_path: Path) -> None:
    text = long_trace(80 * MIB)
    path = tmp_path / "trace.json"
    path.write_bytes(text[: 60 * MIB])
    grown = threading.Event()

    def grow(_bytes_read: int) -> None:
        if not grown.is_set():
            with path.open("ab") as file:
                file.write(text[60 * MIB :])
            grown.set()

    assert "wait until it is complete" in error_of(path, grow).message
    assert xmem.read_trace(path).core.event_count == text.count(b"\n") + 1


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(tmp_path: Path) -> None:
    path, other = tmp_path / "trace.json", tmp_path / "other.json"
    text = long_trace(40 * MIB)
    path.write_bytes(text)

    def replace(_bytes_read: int) -> None:
        other.write_bytes(b"[]")
        other.replace(path)

    assert xmem.read_trace(path, progress=replace).core.event_count == text.count(b"\n") + 1


def test_a_file_that_is_overwritten_while_it_is_read(tmp_path: Path) -> None:
    """Other bytes of the same length: nothing shows it but the text."""
    path = tmp_path / "trace.json"
    text = long_trace(80 * MIB)
    path.write_bytes(text)

    def overwrite(_bytes_read: int) -> None:
        with path.open("r+b") as file:
            file.seek(40 * MIB)
            file.write(b"\0" * (len(text) - 40 * MIB))

    error = error_of(path, overwrite)
    assert error.byte_offset >= 40 * MIB


# Files that cannot be read.


def test_a_folder(tmp_path: Path) -> None:
    assert "directory" in error_of(tmp_path).message.lower()
    with pytest.raises(TraceError, match=r"(?i)directory"):
        _core.read_trace_file(str(tmp_path), [])


def test_a_link_to_nothing(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.symlink_to(tmp_path / "gone.json")
    assert "No such file" in error_of(path).message


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    assert "name too long" in error_of(tmp_path / ("x" * 300)).message


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no /proc here")
def test_a_read_error_in_the_middle() -> None:
    """The first bytes of a process's memory are never mapped: reading them is an input/output error."""
    assert "Input/output error" in error_of(Path("/proc/self/mem")).message
    with pytest.raises(TraceError, match="Input/output error"):
        _core.read_trace_file("/proc/self/mem", [])


def test_a_pipe_that_closes_early(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(training().bytes()[:500],))
    writer.start()
    with pytest.raises(TraceError, match="ends in the middle"):
        _core.read_trace_file(str(path), [])
    writer.join()


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.9999])
def test_a_compressed_file_that_was_cut(keep: float, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    data = gzip.compress(long_trace(4 * MIB))
    path.write_bytes(data[: int(len(data) * keep)])
    assert "gzip stream ends early" in error_of(path).message


@pytest.mark.parametrize("at", [12, 0.5, -6])
def test_a_compressed_file_with_a_wrong_byte(at: float, tmp_path: Path) -> None:
    data = bytearray(gzip.compress(training().bytes()))
    place = int(len(data) * at) if isinstance(at, float) else at
    data[place] ^= 0x55
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data)
    error = error_of(path)
    assert "gzip" in error.message or "trace" in error.message


# Text that would need much memory.


def peak_memory_of(text: bytes) -> int:
    """Bytes of resident memory that reading in a process of its own adds."""
    code = (
        "import resource, sys, xmem\n"
        "text = sys.stdin.buffer.read()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: xmem.read_trace(text)\n"
        "except xmem.TraceError as error: print(error, file=sys.stderr)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, timeout=TIME_LIMIT_S, check=True
    )
    return int(result.stdout)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b'[{"ph":"X","name":"' + b"x" * (300 * MIB) + b'"}]', id="string"),
        pytest.param(b'[{"ph":"X","args":' + b"[" * (300 * MIB), id="nesting"),
        pytest.param(
            b'{"a":' + b"[" * (300 * MIB), id="nesting_outside_of_events", marks=pytest.mark.nightly
        ),
        pytest.param(b'{"a":"' + b"x" * (300 * MIB), id="key_without_end", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.slow
def test_a_piece_without_end_is_given_up_in_bounded_memory(text: bytes) -> None:
    with pytest.raises(TraceError, match="longer than 256 MiB"):
        xmem.read_trace(text)
    assert peak_memory_of(text) < 1200 * MIB


# Writing.


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """A limit on the size of files is a full disk to the writer."""
    path = tmp_path / "out.json"
    path.write_bytes(b"before")
    path.chmod(0o640)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_whole(path, b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("out.json", b"before")]
    write_whole(path, b"after")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("out.json", b"after")]
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path: Path) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "file")
    write_whole(link, b"data")
    assert link.is_symlink()
    assert (tmp_path / "file").read_bytes() == b"data"
    os.mkfifo(pipe)
    reader = threading.Thread(target=pipe.read_bytes)
    reader.start()
    write_whole(pipe, b"data")
    reader.join()
    assert pipe.is_fifo()


# The limit comes after the import: that of an editable install may build.
LIMITED_COMMAND = """
import resource, sys
import xmem._core
from xmem.cli.main import main
if limit := int(sys.argv.pop(1)):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
main()
"""


def run(
    *arguments: str | Path, stdout: int | None = subprocess.PIPE, limit: int | None = None
) -> tuple[int, str]:
    """Exit status and stderr of the command; `limit`: no file may grow longer than these bytes."""
    result = subprocess.run(
        [sys.executable, "-c", LIMITED_COMMAND, str(limit or 0), *map(str, arguments)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert "Traceback" not in result.stderr
    return result.returncode, result.stderr


WRITING = [
    pytest.param(("estimate", "--json"), id="estimate"),
    pytest.param(("report", "--format", "memory_viz"), id="snapshot"),
    pytest.param(("report", "--format", "parquet"), id="table"),
]


@needs_command
@pytest.mark.parametrize("command", WRITING)
def test_a_full_disk_leaves_no_half_of_a_file(command: tuple[str, ...], tmp_path: Path) -> None:
    trace = training().write(tmp_path / "trace.json.gz")
    output = tmp_path / "out"
    status, message = run(command[0], trace, *command[1:], "-o", output, limit=200)
    assert (status, "cannot" in message or "can be written" in message) == (USAGE, True), message
    assert {file.name for file in tmp_path.iterdir()} == {"trace.json.gz"}


@needs_command
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "command",
    [
        ("estimate", "--json"),
        ("estimate",),
        ("inspect", "blocks", "--json"),
        ("report", "--format", "csv"),
    ],
)
def test_a_full_disk_under_stdout(command: tuple[str, ...], tmp_path: Path) -> None:
    trace = training().write(tmp_path / "trace.json")
    with Path("/dev/full").open("wb") as full:
        status, message = run(command[0], trace, *command[1:], stdout=full.fileno())
    assert status == BAD_INPUT
    assert "No space left" in message


@needs_command
@pytest.mark.parametrize("arguments", [("--json",), ()])
def test_a_reader_that_has_gone_is_no_error_of_ours(arguments: tuple[str, ...], tmp_path: Path) -> None:
    trace, output = training().write(tmp_path / "trace.json"), tmp_path / "estimate.json"
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        assert run("estimate", trace, "-o", output, *arguments, stdout=write_end) == (BROKEN_PIPE, "")
    finally:
        os.close(write_end)
    assert json.loads(output.read_text())["peak_reserved_bytes"] > 0


@needs_command
@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no /proc here")
def test_the_command_says_what_could_not_be_read(tmp_path: Path) -> None:
    for path, says in ((Path("/proc/self/mem"), "Input/output error"), (tmp_path, "directory")):
        status, message = run("estimate", path)
        assert status == BAD_INPUT
        assert says in message


@needs_command
def test_a_written_estimate_replaces_the_one_before(tmp_path: Path) -> None:
    trace = training().write(tmp_path / "trace.json")
    output = tmp_path / "estimate.json"
    output.write_text("old")
    assert run("estimate", trace, "-o", output)[0] == DONE
    assert json.loads(output.read_bytes())["schema_version"] >= 1
    assert run("report", trace, "-o", tmp_path / "snapshot.pickle")[0] == DONE
    assert pickle.loads((tmp_path / "snapshot.pickle").read_bytes())["segments"]
