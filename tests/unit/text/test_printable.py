"""Names from files must not steer what reads our output."""

from __future__ import annotations

import io

import pytest

from xmem.errors import TraceError
from xmem.printable import PrintableStream, inert, one_line, printable


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("aten::add", "aten::add"),
        ("größe \u4e2d", "größe \u4e2d"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\x1b]0;title\x07", "a\\x1b]0;title\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("a\r\n::error file=x::y", "a\\r\\n::error file=x::y"),
        ("tab\there", "tab\\there"),
        ("evil\u202egpj.exe", "evil\\u202egpj.exe"),
        ("line\u2028break", "line\\u2028break"),
    ],
)
def test_a_name_is_one_visible_line(name: str, line: str) -> None:
    assert one_line(name) == line
    assert one_line(line) == line


def test_a_text_keeps_its_lines() -> None:
    assert printable("one\n\ttwo\x1b[31m\r") == "one\n\ttwo\\x1b[31m\\r"


def test_a_stream_lets_rich_colour_a_terminal_and_nothing_else() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    piped, terminal = io.StringIO(), Terminal()
    for stream in (piped, terminal):
        assert PrintableStream(stream).write("\x1b[1mbold\x1b[0m\x1b]0;x\x07\n") > 0
    assert piped.getvalue() == "\\x1b[1mbold\\x1b[0m\\x1b]0;x\\x07\n"
    assert terminal.getvalue() == "\x1b[1mbold\x1b[0m\\x1b]0;x\\x07\n"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "\t=1", "\r=1"])
def test_a_spreadsheet_runs_no_text(text: str) -> None:
    assert inert(text) == f"'{text}"


def test_a_spreadsheet_gets_other_texts_as_they_are() -> None:
    assert inert("aten::add") == "aten::add"


def test_the_name_of_a_file_is_one_line_in_an_error() -> None:
    assert str(TraceError("is damaged", "a\n::error::b")) == "a\\n::error::b: is damaged"
