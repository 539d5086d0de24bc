"""The messages of the exceptions say where, what, and what to do."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from xmem.errors import CaptureError, ConfigError, TraceError, XmemError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TraceError("cut off; copy it again"), "cut off; copy it again"),
        (TraceError("cut off; copy it again", "a.json"), "a.json: cut off; copy it again"),
        (TraceError("bad event", Path("a.json"), 12345), "a.json, byte 12,345: bad event"),
        (TraceError("bad event", "a.json", 12345, 6789), "a.json, byte 12,345, event 6,789: bad event"),
        (TraceError("bad event", event_index=0), "event 0: bad event"),
        (
            ConfigError("'banana' is not a size", "write it like 11.5GiB"),
            "'banana' is not a size; write it like 11.5GiB",
        ),
        (ConfigError("--json and --html cannot be combined"), "--json and --html cannot be combined"),
        (CaptureError("the script failed; run it alone", 7), "the script failed; run it alone"),
        (
            CaptureError("the script failed; run it alone", 7, "ValueError: no data"),
            "the script failed; run it alone\nThe script's last output:\nValueError: no data",
        ),
    ],
)
def test_message(error: XmemError, message: str) -> None:
    assert str(error) == message


@pytest.mark.parametrize(
    "error",
    [
        TraceError("bad event", "a.json", 12345, 6789),
        ConfigError("'banana' is not a size", "write it like 24GB"),
        ConfigError("no command was given"),
        CaptureError("failed", 7, "last line"),
    ],
)
def test_survives_a_process_boundary(error: XmemError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
