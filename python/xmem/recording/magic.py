"""The ``%%xmem`` cell magic for IPython and Jupyter, loaded by ``%load_ext xmem``."""

from __future__ import annotations

import sys

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from rich.console import Console

from xmem.errors import XmemError
from xmem.recording.recorder import record
from xmem.reports.terminal.summary import render

_VARIABLE = "_xmem"


@magics_class
class XmemMagics(Magics):  # type: ignore[misc]
    """The ``%%xmem`` magic."""

    @magic_arguments()
    @argument("--gpu", help="a GPU of `xmem-fast gpus` that the result is for")
    @argument("--capacity", help="its memory, such as 11.5GiB")
    @argument("--alloc-conf", help="PYTORCH_CUDA_ALLOC_CONF of the job")
    @argument("--json", help="where to write the estimate")
    @argument("--html", help="where to write the report")
    @argument(
        "--device", default="auto", help="cpu to predict, fake to predict without computing, cuda to measure"
    )
    @cell_magic
    def xmem(self, line: str, cell: str) -> None:
        """Record the memory of a cell and print what it needs; `_xmem` then holds the recorder."""
        options = parse_argstring(self.xmem, line)
        try:
            recorder = record(
                gpu=options.gpu,
                capacity=options.capacity,
                alloc_conf=options.alloc_conf,
                json=options.json,
                html=options.html,
                device=options.device,
            )
            with recorder:
                if not self.shell.run_cell(cell, store_history=False).success:
                    recorder.discard()  # IPython has shown the exception
            self.shell.user_ns[_VARIABLE] = recorder
            if recorder.is_recorded:
                render(recorder.estimate, Console(file=sys.stdout))
        except XmemError as error:
            print(f"xmem: {error}", file=sys.stderr)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magic; ``%load_ext xmem`` calls this."""
    shell.register_magics(XmemMagics)
