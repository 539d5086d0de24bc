"""Each stack of ``stacks.toml`` is right, or refused with the reason that is expected.

``make test-stacks`` makes the environments and sets ``XMEM_STACKS``, the pattern that selects rows.
"""

from __future__ import annotations

import os

import pytest

from stacks.__main__ import environments_folder, results_folder
from stacks.page import problems_of
from stacks.rows import Row, selected_rows
from stacks.runner import Result, run_row

PATTERN = os.environ.get("XMEM_STACKS")
ROWS = selected_rows(PATTERN) if PATTERN is not None else []

pytestmark = [
    pytest.mark.timeout(1800),  # the runner bounds each row, and says which bound it was
    pytest.mark.skipif(PATTERN is None, reason="runs with make test-stacks"),
]


@pytest.fixture(params=ROWS or [None], ids=lambda row: row.name if row else "none")
def ran(request: pytest.FixtureRequest) -> tuple[Row, Result]:
    row: Row = request.param
    return row, run_row(row, environments=environments_folder(), folder=results_folder())


def test_a_stack(ran: tuple[Row, Result]) -> None:
    row, result = ran
    if row.refused:
        assert not result.worked, "it works now: make it a row that is expected to"
        assert row.refused in result.message + result.reason, result.reason
        assert result.ended != "exited" or result.exit_status == 3, result.reason
        return
    assert result.worked, result.reason
    assert problems_of(result) == []
    assert result.interval_bytes is not None
    low, high = result.interval_bytes
    assert low <= result.need_bytes <= high
