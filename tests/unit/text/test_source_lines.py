"""Names of lines: the user's, and the package's behind it."""

from __future__ import annotations

import pytest

from xmem.text.source_lines import package_line, user_line


@pytest.mark.parametrize(
    ("name", "user", "package"),
    [
        ("train.py:42", "train.py:42", "train.py:42"),
        (
            "train.py:42 < transformers/models/gpt2/modeling_gpt2.py:341",
            "train.py:42",
            "transformers/models/gpt2/modeling_gpt2.py:341",
        ),
        (" < package/__main__.py:3", "package/__main__.py:3", "package/__main__.py:3"),
        (
            "<ipython-input-3-ab12>:1 < peft/peft_model.py:9",
            "<ipython-input-3-ab12>:1",
            "peft/peft_model.py:9",
        ),
    ],
)
def test_both_parts(name: str, user: str, package: str) -> None:
    assert user_line(name) == user
    assert package_line(name) == package
