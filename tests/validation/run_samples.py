"""Measured runs and estimates written by hand. The GPU has 10,000 MB, so that one per cent is 100 MB."""

from __future__ import annotations

from pathlib import Path

from xmem.validation.estimates import RowEstimate
from xmem.validation.runs import IDENTITY, MeasuredRun

MB = 1_000_000
TOTAL = 10_000 * MB
RTX_3060 = "NVIDIA GeForce RTX 3060"
HEADER = (
    "set,family,model,optimizer,batch_size,gpu,gpu_total_bytes,zero_grad_mode,nvml_peak_bytes,real_oom,"
    "xmem_estimate_bytes,xmem_second_round_oom,xmem_runtime_s,dnnmem_estimate_bytes"
)
ROWS = [
    f"001-Anova,CNN,VGG16,SGD,200,{RTX_3060},10000000000,null,4000000000,false,4100000000,false,20.5,3000000000",
    f"001-Anova,Transformer,me/gpt,Adam,8,{RTX_3060},10000000000,,2000000000,false,1900000000,true,30,2500000000",
    f"002-Monte Carlo,CNN,VGG16,Adam,900,{RTX_3060},10000000000,2,9900000000,true,9950000000,,25,-1",
]


def run(
    peak_mb: int = 1000,
    *,
    failed: bool = False,
    model: str = "net",
    family: str = "CNN",
    optimizer: str = "Adam",
    set_name: str = "001-Anova",
    xmem_mb: int | None = None,
    xmem_failed: bool | None = None,
    batch: int = 8,
) -> MeasuredRun:
    return MeasuredRun(
        where="runs.csv:2",
        identity=(set_name, family, model, optimizer, str(batch), RTX_3060, ""),
        set=set_name,
        family=family,
        model=model,
        optimizer=optimizer,
        batch=batch,
        gpu=RTX_3060,
        zero_grad=0,
        total_bytes=TOTAL,
        peak_bytes=peak_mb * MB,
        out_of_memory=failed,
        published_bytes={} if xmem_mb is None else {"xMem": xmem_mb * MB},
        published_second_oom=xmem_failed,
        published_seconds=None,
    )


def said(
    mb: int | None, *, oom: bool | None = None, way: str = "phantom", of: MeasuredRun | None = None
) -> RowEstimate:
    identity = (of or run()).identity
    return RowEstimate(identity, way, None if mb is None else mb * MB, estimated_oom=oom)


def runs_file(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "runs.csv"
    path.write_text("\n".join([header, *(rows or ROWS)]) + "\n")
    return path


def estimates_file(folder: Path, *rows: str) -> Path:
    """Each row is what follows the identity: way to note, of the first runs in order."""
    path = folder / "estimates.csv"
    identities = [
        f"001-Anova,CNN,VGG16,SGD,200,{RTX_3060},null",
        f"001-Anova,Transformer,me/gpt,Adam,8,{RTX_3060},",
        f"002-Monte Carlo,CNN,VGG16,Adam,900,{RTX_3060},2",
    ]
    header = ",".join(
        [*IDENTITY, "way,estimate_bytes,estimated_oom,seconds,low_bytes,high_bytes,note,policies"]
    )
    lines = [f"{identity},{row}" for identity, row in zip(identities, rows, strict=False)]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path
