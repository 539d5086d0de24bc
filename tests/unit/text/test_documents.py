"""JSON and TOML that would end Python's stack or its patience with numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from xmem.errors import ConfigError
from xmem.files.documents import parse_json, parse_toml, read_toml


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "9" * 5_000, "{", b"\xff"],
    ids=["lists", "objects", "digits", "", "utf-8"],
)
def test_whatever_is_wrong_with_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_json(text)


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 100_000, "a = " + "{b=" * 5_000, "a = " + "9" * 5_000, "a = "]
)
def test_whatever_is_wrong_with_toml_names_the_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_toml(text)
    (tmp_path / "spec.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"spec\.toml is not valid TOML"):
        read_toml(tmp_path / "spec.toml")


def test_a_file_that_is_not_utf_8_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_toml(tmp_path / "spec.toml")
