"""Where a trace comes from changes nothing but how it gets here; what is wrong with the way says so."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from xmem import _core
from xmem.errors import TraceError
from xmem.files.sources import TraceSource
from xmem.testing.trace_builder import TraceBuilder
from xmem.trace.trace import ReadProgress, Trace, read_trace

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

EVENTS = 20_000
MIB = 1 << 20
FILLING = (b'{"ph":"M","name":"' + b"x" * (1 << 14))[: (1 << 14) - 3] + b'"},'
"""An event of 16 KiB that is skipped."""
Compress = Callable[[bytes], bytes]
CODECS: dict[str, Compress] = {"gzip": gzip.compress, "zstd": zstd.compress}
codecs = pytest.mark.parametrize("codec", CODECS)


def text_of(events: int) -> bytes:
    """Allocations of random sizes, so that the text does not compress to nothing."""
    random_ = random.Random(1)
    trace = TraceBuilder()
    for index in range(events):
        trace.alloc(random_.randrange(1 << 40), random_.randrange(1 << 30), index)
    return trace.bytes("compact")


def filled(text: bytes, size_bytes: int) -> bytes:
    """The text, made longer by events that are skipped."""
    begin, events, rest = text.partition(b'"traceEvents":[')
    assert events
    return begin + events + FILLING * (size_bytes // len(FILLING)) + rest


@pytest.fixture(scope="module")
def text() -> bytes:
    """Some pieces long."""
    made = text_of(EVENTS)
    assert len(made) > 3 << 20
    return made


def rows(trace: Trace) -> tuple[list[int], list[int], int, dict[str, int]]:
    return trace.memory.time_ns.tolist(), trace.memory.bytes.tolist(), trace.bytes, trace.counts


def through_a_pipe(data: bytes, path: Path, piece_bytes: int) -> threading.Thread:
    os.mkfifo(path)

    def write() -> None:
        with path.open("wb", buffering=0) as pipe:
            for begin in range(0, len(data), piece_bytes):
                pipe.write(data[begin : begin + piece_bytes])

    writer = threading.Thread(target=write)
    writer.start()
    return writer


def stored_in_memory(data: bytes) -> str:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://traces/t.json", "wb") as file:
        file.write(data)
    return "memory://traces/t.json"


def failure(source: TraceSource) -> TraceError:
    """The error of a read, after checking that it left no thread behind."""
    with pytest.raises(TraceError) as raised:
        read_trace(source)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("xmem")]
    return raised.value


# Every way in gives the same trace.


@pytest.mark.parametrize("codec", ["plain", *CODECS])
def test_every_way_in(codec: str, text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows(read_trace(text))
    data = CODECS.get(codec, bytes)(text)
    path = tmp_path / "trace"
    path.write_bytes(data)
    assert len(expected[0]) == EVENTS
    assert rows(read_trace(data)) == expected
    assert rows(read_trace(path)) == expected
    assert rows(read_trace(path.as_uri())) == expected
    assert rows(read_trace(stored_in_memory(data))) == expected
    assert rows(read_trace(io.BytesIO(data))) == expected
    with path.open("rb") as file:
        assert rows(read_trace(file)) == expected
        assert not file.closed

    writer = through_a_pipe(data, tmp_path / "pipe", 1 << 16)
    assert rows(read_trace(tmp_path / "pipe")) == expected
    writer.join()

    with path.open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert rows(read_trace("-")) == expected


@codecs
def test_a_pipe_byte_by_byte(codec: str, tmp_path: Path) -> None:
    text = text_of(3)
    writer = through_a_pipe(CODECS[codec](text), tmp_path / "pipe", 1)
    assert rows(read_trace(tmp_path / "pipe")) == rows(read_trace(text))
    writer.join()


@codecs
def test_streams_one_after_another(codec: str, text: bytes) -> None:
    cuts = [0, 1, 1000, 1 << 20, len(text)]
    streams = [CODECS[codec](text[begin:end]) for begin, end in itertools.pairwise(cuts)]
    assert rows(read_trace(b"".join(streams))) == rows(read_trace(text))
    assert rows(read_trace((b"\0" * 512).join([*streams, b""]))) == rows(read_trace(text))


def test_zstd_frames_that_are_skipped(text: bytes) -> None:
    frame = b"\x5a\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    packed = zstd.compress(text)
    assert rows(read_trace(frame + packed + frame)) == rows(read_trace(text))


def test_a_zstd_window_of_2_gib(text: bytes) -> None:
    """As ``zstd --long=31`` writes; a decompressor takes 128 MiB unless told otherwise."""
    options: dict[Any, Any] = {
        zstd.CompressionParameter.window_log: 31,
        zstd.CompressionParameter.enable_long_distance_matching: 1,
    }
    packer = zstd.ZstdCompressor(options=options)
    packed = packer.compress(text[:100]) + packer.compress(text[100:]) + packer.flush()
    assert rows(read_trace(packed)) == rows(read_trace(text))


def test_a_source_keeps_its_name(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    with path.open("rb") as file:
        assert read_trace(file).path == str(path)
    assert read_trace(stored_in_memory(text)).path == "memory://traces/t.json"
    assert read_trace(text).path is None


def test_a_file_name_that_is_not_utf8(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.json")
    path.write_bytes(text)
    assert rows(read_trace(path)) == rows(read_trace(text))


# What is wrong with the way.


@codecs
def test_a_cut_stream(codec: str, text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    whole = CODECS[codec](text)
    path.write_bytes(whole[: len(whole) // 2])
    error = failure(path)
    assert error.path == str(path)
    assert f"the {codec} stream ends early" in error.message
    assert 0 < error.byte_offset < len(text)


def test_the_offset_of_a_cut_is_that_in_the_text(text: bytes) -> None:
    begin = text[:1_500_000]
    error = failure(gzip.compress(begin) + gzip.compress(text[1_500_000:])[:5])
    assert error.byte_offset == len(begin)


@codecs
def test_a_cut_checksum(codec: str, text: bytes) -> None:
    options: dict[Any, Any] = {zstd.CompressionParameter.checksum_flag: 1}
    whole = gzip.compress(text) if codec == "gzip" else zstd.compress(text, options=options)
    assert "ends early" in failure(whole[:-2]).message
    assert "damaged" in failure(whole[:-2] + bytes(byte ^ 1 for byte in whole[-2:])).message


@codecs
def test_what_follows_a_stream(codec: str, text: bytes) -> None:
    error = failure(CODECS[codec](text) + b"and something else")
    assert f"trailing bytes after the {codec} stream are not {codec}" in error.message
    assert error.byte_offset == len(text)


@codecs
def test_a_wrong_text_in_a_right_stream(codec: str) -> None:
    """What is wrong first is said, though the other end of the stream is cut."""
    error = failure(CODECS[codec](b"\n\nEpoch 1: loss 0.31" + os.urandom(1 << 22))[:-9])
    assert "not the JSON of a profiler trace" in error.message
    assert error.byte_offset == 2


def test_a_wrong_text_ends_a_pipe_that_gives_no_more(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    opened = threading.Thread(target=lambda: ends.append((tmp_path / "pipe").open("wb", buffering=0)))
    ends: list[Any] = []
    opened.start()
    writer = threading.Thread(target=lambda: (opened.join(), ends[0].write(b"Epoch 1: loss 0.31")))
    writer.start()
    assert "not the JSON" in failure(tmp_path / "pipe").message
    writer.join()
    ends[0].close()


@pytest.mark.parametrize("grow", [False, True])
@pytest.mark.parametrize("codec", ["plain", "gzip"])
def test_a_file_that_changes_while_it_is_read(codec: str, grow: bool, tmp_path: Path) -> None:
    text = filled(text_of(5), 80 * MIB)
    path = tmp_path / "trace.json"
    path.write_bytes(CODECS.get(codec, bytes)(text))

    def change(_progress: ReadProgress) -> None:
        with path.open("r+b") as file:
            if grow:
                file.seek(0, os.SEEK_END)
                file.write(b" ")
            else:
                file.truncate(20)

    with pytest.raises(TraceError, match="the file changed while it was being read"):
        read_trace(path, progress=change)


def test_a_file_that_is_replaced_is_read_as_it_was(tmp_path: Path) -> None:
    text = filled(text_of(5), 80 * MIB)
    path = tmp_path / "trace.json"
    path.write_bytes(text)

    def replace(_progress: ReadProgress) -> None:
        (tmp_path / "new.json").write_bytes(b"something else")
        (tmp_path / "new.json").replace(path)

    assert rows(read_trace(path, progress=replace)) == rows(read_trace(text))
    assert path.read_bytes() == b"something else"


@pytest.mark.parametrize(
    ("magic", "says"),
    [
        (b"\x80\x02}q", "pickle"),
        (b"PK\x03\x04", "zip archive"),
        (b"\xfd7zXZ\0", "xz -dc FILE |"),
        (b"BZh9", "bzip2 -dc FILE |"),
    ],
)
def test_other_formats(magic: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(magic + b"and so on")
    assert says in failure(path).message
    assert says in failure(magic + b"and so on").message


def test_a_file_in_text_mode(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(b"{}")
    with (tmp_path / "trace.json").open() as file, pytest.raises(TypeError, match="binary mode"):
        read_trace(file)  # type: ignore[arg-type]


def test_a_url_of_an_unknown_kind() -> None:
    pytest.importorskip("fsspec")
    error = failure("gopher3://host/trace.json")
    assert error.path == "gopher3://host/trace.json"
    assert "gopher3" in error.message
    assert "pass a path or a URL" in error.message


def test_a_url_of_no_file() -> None:
    pytest.importorskip("fsspec")
    assert "check the address" in failure("memory://nowhere/trace.json").message


def test_a_download_that_breaks_off(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pytest.importorskip("fsspec.implementations.memory")
    url = stored_in_memory(text)
    read = memory.MemoryFile.read

    def broken(file: Any, size: int) -> bytes:
        if file.tell() > 1 << 20:
            raise RuntimeError("peer went away")
        return read(file, size)  # type: ignore[no-any-return]

    monkeypatch.setattr(memory.MemoryFile, "read", broken)
    error = failure(url)
    assert "RuntimeError: peer went away; check the address" in error.message
    assert error.byte_offset > 1 << 20


@pytest.mark.parametrize(
    ("module", "source", "extra"),
    [("fsspec", "https://host/trace.json", "remote"), ("backports", zstd.compress(b"{}"), "zstd")],
)
def test_what_is_not_installed(
    module: str, source: TraceSource, extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if module == "backports" and sys.version_info >= (3, 14):
        pytest.skip("Python has its own")
    monkeypatch.setitem(sys.modules, module, None)
    assert f"pip install 'xmem-fast[{extra}]'" in failure(source).message
    if isinstance(source, bytes):
        path = tmp_path / "trace.json.zst"
        path.write_bytes(source)
        assert failure(path).path == str(path)


def test_standard_input_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert "pass a path" in failure("-").message


# How far a read has come, and who else may work meanwhile.


@pytest.mark.parametrize("codec", ["plain", "gzip"])
def test_progress_ends_at_the_size_of_the_file(codec: str, text: bytes, tmp_path: Path) -> None:
    long_text = filled(text, 70 * MIB)
    path = tmp_path / "trace.json"
    path.write_bytes(CODECS.get(codec, bytes)(long_text))
    seen: list[ReadProgress] = []
    read_trace(path, progress=seen.append)
    assert {progress.source_size_bytes for progress in seen} == {path.stat().st_size}
    assert [progress.text_bytes for progress in seen] == sorted(progress.text_bytes for progress in seen)
    assert seen[-1].source_bytes <= path.stat().st_size
    assert seen[-1].text_bytes > len(long_text) // 2
    if codec == "gzip":
        assert seen[-1] == ReadProgress(len(long_text), path.stat().st_size, path.stat().st_size)


@pytest.mark.parametrize("stop_after", [1, 3])
def test_an_error_of_the_callback_ends_the_read(stop_after: int, text: bytes) -> None:
    calls = itertools.count(1)

    def stop(_progress: ReadProgress) -> None:
        if next(calls) == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_trace(gzip.compress(text), progress=stop)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("xmem")]


@contextmanager
def counting() -> Iterator[Callable[[], int]]:
    """A thread that counts, in Python, and how far it has come."""
    counted = 0
    ended = threading.Event()

    def count() -> None:
        nonlocal counted
        while not ended.wait(1e-4):
            counted += 1

    counter = threading.Thread(target=count)
    counter.start()
    try:
        yield lambda: counted
    finally:
        ended.set()
        counter.join()


def test_other_threads_run_while_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(filled(text_of(5), 400 * MIB))
    with counting() as count:
        counts: list[int] = []
        read_trace(path, progress=lambda _progress: counts.append(count()))
    assert len(counts) > 5
    # Were the interpreter locked, it could count once a call, when the call lets it.
    assert counts[-1] - counts[0] > 3 * len(counts)


def test_other_threads_run_while_a_piece_is_parsed() -> None:
    reader = _core.TraceReader([])
    text = filled(text_of(5), 400 * MIB)
    with counting() as count:
        before = count()
        reader.feed(text)
        after = count()
    assert after - before > 3
    assert reader.finish().bytes == len(text)


def test_traces_side_by_side(text: bytes, tmp_path: Path) -> None:
    for name, compress in {"plain": bytes, **CODECS}.items():
        (tmp_path / name).write_bytes(compress(text))
    expected = rows(read_trace(text))
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(read_trace, sorted(tmp_path.iterdir()) * 4))
    assert [rows(trace) for trace in found] == [expected] * 12


# Beyond 4 GiB.


class Huge(io.RawIOBase):
    """Two halves of a text with events between them that are skipped; nothing stores it."""

    def __init__(self, first: bytes, filling_bytes: int, second: bytes) -> None:
        piece = FILLING * 16
        self._pieces = itertools.chain(
            [first], itertools.repeat(piece, filling_bytes // len(piece)), [second]
        )

    def read(self, _size: int = -1) -> bytes:
        return next(self._pieces, b"")


@pytest.mark.parametrize("whole", [True, False])
def test_more_than_4_gib(whole: bool) -> None:
    filling_bytes = (1 << 32) + MIB
    text = text_of(100)
    half = text.index(b"},{", len(text) // 2) + 2
    bad = b'{"ph":"X","cat":"cpu_op","name":"aten::no_time"},'
    second = bad + (text[half:] if whole else text[half:-40])
    source: Any = Huge(text[:half], filling_bytes, second)
    if not whole:
        assert failure(source).byte_offset == half + filling_bytes + len(second)
        return
    trace = read_trace(source)
    assert trace.bytes == half + filling_bytes + len(second)
    assert trace.counts == {"memory": 100, "M": filling_bytes // len(FILLING)}
    assert trace.memory.time_ns.tolist() == read_trace(text).memory.time_ns.tolist()
    assert trace.diagnostics == [("bad_event", 1, half + filling_bytes)]
