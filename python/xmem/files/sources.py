"""Where the text of a trace comes from: a file, a pipe, a URL, bytes; plain or compressed.

A ``Source`` gives its text in pieces. The thread that asks for a piece is the one that waits for the disk,
the pipe or the network, and that decompresses: in the main thread all of it ends at once with Ctrl-C, and no
other thread ever waits for something that may not come.
"""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias, cast
from urllib.parse import unquote, urlsplit

from xmem.errors import TraceError
from xmem.files import system
from xmem.records import dataclass

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

TraceSource: TypeAlias = str | os.PathLike[str] | bytes | BinaryIO
"""A path, a URL, ``-`` for standard input, the bytes of a file, or a file opened in binary mode."""

STANDARD_INPUT = "-"

_STORED_PIECE_BYTES = 1 << 18
_TEXT_PIECE_BYTES = 1 << 20
_PIPE_BYTES = 1 << 20
_POLL_MS = 100
_HEAD_BYTES = 8

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"  # after one byte 0x50 to 0x5f
_OTHER_FORMATS = {
    b"\x80": "this is a pickle, perhaps a memory snapshot, not a profiler trace; pass a trace",
    b"PK\x03\x04": "this is a zip archive; unpack it and pass the trace inside",
    b"\xfd7zXZ\0": "xz files are not supported; pipe it in: xz -dc FILE | xmem-fast estimate -",
    b"BZh": "bzip2 files are not supported; pipe it in: bzip2 -dc FILE | xmem-fast estimate -",
}


def unpacks_too_far(stored_bytes: int, text_bytes: int) -> bool:
    """Return whether text is so much longer than what it was packed into that nobody recorded it.

    Traces pack to a fifteenth or a thirtieth; a few bytes can be made to unpack without an end.
    """
    return text_bytes > (256 << 20) + 100 * stored_bytes


class _Decompressor(Protocol):
    """One compressed stream, as the decompressors of the standard library are."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


@dataclass(frozen=True)
class _Codec:
    name: str
    new: Callable[[], _Decompressor]
    errors: tuple[type[Exception], ...]


class Source:
    """An opened source; made by ``open_source``.

    Attributes:
        name: For messages; None where there is none.
        size_bytes: Length as stored, compressed or not; -1 = not known.
        taken_bytes: How much of that has been read.
        text_bytes: How much text the pieces so far amount to.
        plain_path: The file, where the text can as well be read straight from it.
    """

    def __init__(
        self,
        name: str | None,
        stored: Iterator[bytes],
        size_bytes: int = -1,
        plain_path: Path | None = None,
    ) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.taken_bytes = 0
        self.text_bytes = 0
        self.plain_path = plain_path
        self._stored = stored

    def pieces(self) -> Iterator[bytes]:
        """The uncompressed text, to be taken once; an empty piece says that there is nothing yet.

        Raises:
            TraceError: The source cannot be read on, or is damaged, ends early, or of another format.
        """
        try:
            stored = self._counted()
            head = b""
            while len(head) < _HEAD_BYTES and (data := next(stored, None)) is not None:
                head += data
            if (other := _other_format(head)) is not None:
                raise TraceError(other)
            codec = _packed_as(head)
            stored = chain([head], stored)
            for piece in stored if codec is None else _decompressed(stored, codec()):
                self.text_bytes += len(piece)
                if codec is not None and unpacks_too_far(self.taken_bytes, self.text_bytes):
                    raise TraceError(
                        f"{self.taken_bytes:,} bytes unpack to over {self.text_bytes:,}, as no trace does; "
                        "if it is one, decompress it yourself and pass the text"
                    )
                yield piece
        except OSError as error:
            raise TraceError(_unreadable(error), byte_offset=self.text_bytes) from None
        except TraceError as error:
            raise TraceError(error.message, byte_offset=self.text_bytes) from None

    def _counted(self) -> Iterator[bytes]:
        for data in self._stored:
            self.taken_bytes += len(data)
            yield data


@contextmanager
def open_source(source: TraceSource) -> Iterator[Source]:
    """Open a source, and close at the end what was opened here.

    Raises:
        TraceError: It cannot be opened, what reads the URL is not installed, or the file changed meanwhile.
        TypeError: A file that is not opened in binary mode.
    """
    with ExitStack() as closing:
        if isinstance(source, bytes):
            yield Source(None, _read_file(io.BytesIO(source)), len(source))
        elif isinstance(source, str) and source == STANDARD_INPUT:
            yield _standard_input()
        elif isinstance(source, str) and "://" in source:
            yield _open_url(source, closing)
        elif isinstance(source, str | os.PathLike):
            yield _open_path(Path(source), os.fspath(source), closing)
        elif isinstance(source, io.TextIOBase):
            raise TypeError("a trace is read from a file opened in binary mode: open(path, 'rb')")
        else:
            name = getattr(source, "name", None)
            yield Source(name if isinstance(name, str) else None, _read_file(source))


def _open_path(path: Path, name: str, closing: ExitStack) -> Source:
    try:
        file = closing.enter_context(path.open("rb", buffering=0))  # of a pipe: waits for its other end
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return Source(name, _read_pipe(file.fileno()))
        head = file.read(_HEAD_BYTES)
        file.seek(0)
    except OSError as error:
        raise TraceError(_unreadable(error), name) from None
    except ValueError as error:  # a name with a null byte
        raise TraceError(f"cannot be read: {error}; check the path", name) from None
    closing.enter_context(_unchanged(file.fileno(), name))
    plain = _packed_as(head) is None and _other_format(head) is None
    return Source(name, _read_file(file), status.st_size, path if plain else None)


def _standard_input() -> Source:
    name = "standard input"
    if sys.stdin is None:
        raise TraceError("it is closed; pass a path, or pipe the trace in", name)
    file = sys.stdin.buffer
    try:
        descriptor = file.fileno()
    except OSError:  # not of the operating system, as in tests
        return Source(name, _read_file(file))
    status = os.fstat(descriptor)
    return Source(name, _read_pipe(descriptor), status.st_size if stat.S_ISREG(status.st_mode) else -1)


def _open_url(url: str, closing: ExitStack) -> Source:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise TraceError(f"not an address ({error}); pass a path or a URL", url) from None
    if parts.scheme == "file":
        return _open_path(_path_of(parts.path), url, closing)
    try:
        import fsspec
    except ImportError:
        raise TraceError(
            "URLs are read with fsspec, which is not installed; run pip install 'xmem-fast[remote]', "
            "or download the file and pass its path",
            url,
        ) from None
    try:
        file = closing.enter_context(fsspec.open(url, "rb"))
    except ImportError as error:
        raise TraceError(
            f"the package that reads {parts.scheme}:// is not installed: {error}; install it, "
            "or download the file and pass its path",
            url,
        ) from None
    except ValueError as error:
        raise TraceError(
            f"{error}; pass a path or a URL that fsspec reads, such as https:// or s3://", url
        ) from None
    except Exception as error:  # every protocol has its own
        raise TraceError(_unreachable(error), url) from None
    size_bytes = getattr(file, "size", None)
    return Source(url, _read_remote(file), size_bytes if isinstance(size_bytes, int) else -1)


def _path_of(path: str) -> Path:
    """Return the file that the path of a ``file:`` address names."""
    text = unquote(path)
    # On Windows, a drive stands behind the first slash.
    return Path(text[1:] if system.IS_WINDOWS and text[2:3] == ":" else text)


def _read_file(file: BinaryIO | io.FileIO) -> Iterator[bytes]:
    while data := file.read(_STORED_PIECE_BYTES):
        yield data


def _read_remote(file: BinaryIO) -> Iterator[bytes]:
    try:
        yield from _read_file(file)
    except Exception as error:
        raise TraceError(_unreachable(error)) from None


def _read_pipe(descriptor: int) -> Iterator[bytes]:
    """What comes out of a pipe; an empty piece now and then while nothing does."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux
        with suppress(OSError):  # no pipe, or more than this user may have
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    if not hasattr(select, "poll"):  # on Windows, which cannot wait for a pipe: reading does
        while data := os.read(descriptor, _TEXT_PIECE_BYTES):
            yield data
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while True:
        while not poll.poll(_POLL_MS):
            yield b""
        if not (data := os.read(descriptor, _TEXT_PIECE_BYTES)):
            return
        yield data


@contextmanager
def _unchanged(descriptor: int, name: str) -> Iterator[None]:
    """Refuse what was read from a file that somebody wrote to meanwhile."""

    def stamp() -> tuple[int, int]:
        status = os.fstat(descriptor)
        return status.st_size, status.st_mtime_ns

    message = "the file changed while it was being read; wait until it is complete, and read it again"
    before = stamp()
    try:
        yield
    except TraceError as error:
        if stamp() != before:
            raise TraceError(message, name, error.byte_offset, error.event_index) from None
        raise
    if stamp() != before:
        raise TraceError(message, name)


def _decompressed(stored: Iterator[bytes], codec: _Codec) -> Iterator[bytes]:
    """The text of one compressed stream after another."""
    decompressor = codec.new()
    first, begun = True, False
    for data in stored:
        if not data:
            yield b""
            continue
        while True:
            if not begun and not first:
                data = data.lstrip(b"\0")  # tapes and blocks are filled up with zeros
            if not begun and not data:
                break
            try:
                text = decompressor.decompress(data, _TEXT_PIECE_BYTES)
            except codec.errors as error:
                raise _broken(codec, str(error), first or begun) from None
            begun = True
            if text:
                yield text
            data = b""
            if decompressor.eof:
                data = decompressor.unused_data
                decompressor, first, begun = codec.new(), False, False
            elif decompressor.needs_input:
                break
    if begun:
        raise TraceError(
            f"the {codec.name} stream ends early: the file was cut while being written or copied; "
            "record or copy it again"
        )


def _broken(codec: _Codec, error: str, inside: bool) -> TraceError:
    if inside:
        return TraceError(f"the {codec.name} stream is damaged ({error}); record or copy it again")
    return TraceError(
        f"trailing bytes after the {codec.name} stream are not {codec.name} ({error}); copy the file again, "
        f"or decompress it and pass the text"
    )


def _packed_as(head: bytes) -> Callable[[], _Codec] | None:
    """What tells how to decompress, None for text."""
    if head.startswith(_GZIP_MAGIC):
        return _gzip
    if head.startswith(_ZSTD_MAGIC) or (head[1:4] == _ZSTD_SKIPPABLE_MAGIC and head[0] >> 4 == 5):
        return _zstd
    return None


def _gzip() -> _Codec:
    from isal import igzip_lib

    return _Codec(
        "gzip",
        lambda: cast("_Decompressor", igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)),
        (cast("type[Exception]", igzip_lib.IsalError),),
    )


def _zstd() -> _Codec:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        try:
            from backports import zstd
        except ImportError:
            raise TraceError(
                "zstd files are read with backports.zstd, which is not installed; "
                "run pip install 'xmem-fast[zstd]', or pipe it in: zstd -dc FILE | xmem-fast estimate -"
            ) from None
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 31}  # as `zstd --long=31` writes
    return _Codec("zstd", lambda: zstd.ZstdDecompressor(options=options), (zstd.ZstdError,))


def _other_format(head: bytes) -> str | None:
    return next((message for magic, message in _OTHER_FORMATS.items() if head.startswith(magic)), None)


def _unreadable(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}; check the path"


def _unreachable(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file does not exist or cannot be reached; check the address and the connection"
    return f"cannot be read: {type(error).__name__}: {error}; check the address and the connection"
