"""Secrets in command lines and source text, and what only looks like one."""

from __future__ import annotations

import pytest

from xmem.capture.child.xmem_child.masking import masked, masked_arguments


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--hf-token", "abc", "--lr", "1"], ["--hf-token", "***", "--lr", "1"]),
        (["--api_key=abc"], ["--api_key=***"]),
        (["WANDB_API_KEY=abc def"], ["WANDB_API_KEY=***"]),
        (["+logger.api-key=abc"], ["+logger.api-key=***"]),
        (["--password", "--lr", "1"], ["--password", "--lr", "1"]),
        (["AWS_SECRET_ACCESS_KEY=x/y+z"], ["AWS_SECRET_ACCESS_KEY=***"]),
        (["--data", "https://me:word@host/x?y"], ["--data", "https://***@host/x?y"]),
        (["--login", "hf_abcdefghijklmnop"], ["--login", "***"]),
        (["0123456789abcdef0123456789abcdef01234567"], ["***"]),
        (["/home/me/train.py", "--out", "/home/me"], ["~/train.py", "--out", "~"]),
    ],
)
def test_secrets_of_a_command_line(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], shown: list[str]
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert masked_arguments(arguments) == shown


@pytest.mark.parametrize(
    "argument",
    [
        "--max-tokens=12",
        "--token-type-ids",
        "--batch_tokens=3",
        "s3://bucket/a@b",
        "/home/men/x",
        "tokenizer=bert",
    ],
)
def test_what_is_no_secret_stays(monkeypatch: pytest.MonkeyPatch, argument: str) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert masked_arguments([argument, "7"]) == [argument, "7"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('login(token="abc", add=1)', 'login(token="***", add=1)'),
        ("config = {'api_key': 'a b', 'lr': 1}", "config = {'api_key': '***', 'lr': 1}"),
        ("token = batch[0]", "token = batch[0]"),
        ("tokens = tokenizer(text)", "tokens = tokenizer(text)"),
        ("x = eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "x = ***"),
    ],
)
def test_secrets_of_a_line_of_code(line: str, shown: str) -> None:
    assert masked(line) == shown
