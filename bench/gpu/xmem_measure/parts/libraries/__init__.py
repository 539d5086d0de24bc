"""Part 8: the work areas that cuFFT, cuSOLVER and cuSPARSE ask for, and what recurrent layers request.

The libraries themselves are asked, through ctypes: they answer at once, launch nothing, and answer only where
there is a device. Arguments are those with which PyTorch calls them.
"""

from __future__ import annotations

from typing import Any

import torch

from xmem_measure.parts.libraries import cufft, cusolver, cusparse, recurrent
from xmem_measure.session import Session

_TABLES = {"cufft": cufft.tables, "cusolver": cusolver.tables, "cusparse": cusparse.tables}


def run(config: dict[str, Any], session: Session) -> dict[str, Any]:
    """Ask one library."""
    session.start()
    if config["library"] == "recurrent":
        return recurrent.run(config, session)
    # Its parts are loaded when they are first used.
    torch.empty(1, device=session.meter.device)
    return {"tables": [table.to_json() for table in _TABLES[config["library"]](config)]}
