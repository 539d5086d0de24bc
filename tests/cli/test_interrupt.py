"""Ctrl-C while a trace is read: the command ends at once, says so in a line and leaves nothing behind."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from command_line import heed_interrupts
from xmem.testing.trace_builder import TraceBuilder

INTERRUPTED = 130
# None of these sources ends before, the huge file after ten seconds or more: this much tells a read that
# stops from one that goes on, on a busy machine too.
AT_ONCE_S = 4.0
TIME_LIMIT_S = 60

START = b'{"traceEvents": ['
FILLING = b'{"ph": "M"},' * (1 << 16)


@contextmanager
def endless(path: Path, begin: bytes, more: bytes) -> Iterator[str]:
    """A pipe that never ends; ``more`` = nothing: one that gives nothing."""
    os.mkfifo(path)
    ended = threading.Event()

    def write() -> None:
        with path.open("wb", buffering=0) as pipe:
            try:
                pipe.write(begin)
                while more:
                    pipe.write(more)
                ended.wait(TIME_LIMIT_S)
            except BrokenPipeError:
                pass

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield str(path)
    finally:
        ended.set()
        writer.join(TIME_LIMIT_S)


@contextmanager
def without_a_writer(folder: Path) -> Iterator[str]:
    os.mkfifo(folder / "trace.json")
    yield str(folder / "trace.json")


@contextmanager
def silent(folder: Path) -> Iterator[str]:
    with endless(folder / "trace.json", b"", b"") as path:
        yield path


@contextmanager
def stalled_in_an_event(folder: Path) -> Iterator[str]:
    with endless(folder / "trace.json", TraceBuilder().alloc(8, 1, 1).bytes()[:-20], b"") as path:
        yield path


@contextmanager
def endless_text(folder: Path) -> Iterator[str]:
    with endless(folder / "trace.json", START, FILLING) as path:
        yield path


@contextmanager
def endless_gzip(folder: Path) -> Iterator[str]:
    with endless(folder / "trace.json.gz", gzip.compress(START), gzip.compress(FILLING)) as path:
        yield path


@contextmanager
def huge_file(folder: Path) -> Iterator[str]:
    """64 GiB after the end of the document, which are read and skipped, in a file that takes no room."""
    path = folder / "trace.json"
    with path.open("wb") as file:
        file.write(START + b"]}")
        file.truncate(1 << 36)
    yield str(path)


@contextmanager
def stalled_download(_folder: Path) -> Iterator[str]:
    pytest.importorskip("aiohttp")
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and never answers
        yield f"http://127.0.0.1:{server.getsockname()[1]}/trace.json"


def wait_for_the_read(process: subprocess.Popen[str]) -> None:
    """Until the core is loaded, which is right before a read, and a little longer."""
    for _ in range(TIME_LIMIT_S * 20):
        if "/_core." in Path(f"/proc/{process.pid}/maps").read_text():
            break
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    time.sleep(0.7)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    "source",
    [without_a_writer, silent, stalled_in_an_event, endless_text, endless_gzip, huge_file, stalled_download],
)
def test_it_ends_at_once_and_leaves_nothing(
    source: Callable[[Path], AbstractContextManager[str]], tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with source(tmp_path) as trace:
        process = subprocess.Popen(
            [sys.executable, "-m", "xmem.cli.main", "estimate", trace, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(scratch)},
            start_new_session=True,
            preexec_fn=heed_interrupts,
        )
        try:
            wait_for_the_read(process)
            begin_s = time.monotonic()
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=TIME_LIMIT_S)
            took_s = time.monotonic() - begin_s
        finally:
            process.kill()
    assert (process.returncode, stdout, stderr) == (INTERRUPTED, "", "xmem-fast: interrupted\n")
    assert took_s < AT_ONCE_S
    assert not list(scratch.iterdir())
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
