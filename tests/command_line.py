"""``xmem-fast`` as typed, in the process of the tests."""

from __future__ import annotations

import signal

from typer.testing import CliRunner, Result

from xmem.cli.main import app


def xmem_fast(*arguments: object) -> Result:
    """Run the command; whatever goes wrong, it ends without a traceback."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="xmem-fast")
    assert "Traceback" not in result.output
    return result


def heed_interrupts() -> None:
    """For a child process (``preexec_fn``): the tests may run as a background job, which ignores SIGINT and
    SIGQUIT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
