"""The recorded launches that the kernel model is shipped with: ``data/recorded_kernels.json``.

The file's ``card`` says what it was recorded on and how far off the model is. It is written by
``bench/occupancy/fit.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, replace
from functools import cache
from typing import Any

from xmem.files.package_data import read_data
from xmem.occupancy.kernel_model import Kernel, KernelLaunch, KernelModel, Recorded
from xmem.occupancy.problems import Problem, Product

_MOST_OF_A_NAME = 120  # templates of PyTorch's kernels have names of a thousand characters


@cache
def shipped_model() -> KernelModel:
    """Return the model of everything that is shipped."""
    return KernelModel(recorded_of(shipped_document()))


def card() -> dict[str, Any]:
    """Return what the shipped model was recorded on, and its errors."""
    found: dict[str, Any] = shipped_document()["card"]
    return found


def document_of(recorded: Sequence[Recorded], about: dict[str, Any]) -> dict[str, Any]:
    """Return distinct records as a document of plain numbers and texts."""
    kernels: dict[Kernel, int] = {}
    rows = []
    for item in dict.fromkeys(map(_shortened, recorded)):
        problem = item.problem
        rows.append(
            [
                problem.operator,
                problem.shapes,
                problem.dtypes,
                [int(dense) for dense in problem.dense],
                astuple(problem.product) if problem.product else None,
                problem.choice,
                item.compute_capability,
                item.multiprocessors,
                [
                    [kernels.setdefault(launch.kernel, len(kernels)), launch.blocks, launch.share]
                    for launch in item.launches
                ],
            ]
        )
    return {"card": about, "kernels": [astuple(kernel) for kernel in kernels], "records": rows}


def text_of(document: dict[str, Any]) -> str:
    """Return the text of the file: a line per row, so that a change shows as such."""

    def rows(of: Sequence[Any]) -> str:
        return "[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in of) + "\n]"

    return ",\n".join(
        [
            f'{{"card": {json.dumps(document["card"], indent=1)}',
            f'"kernels": {rows(document["kernels"])}',
            f'"records": {rows(document["records"])}}}\n',
        ]
    )


def recorded_of(document: dict[str, Any]) -> list[Recorded]:
    """Return the records of a document."""
    kernels = [Kernel(*row) for row in document["kernels"]]
    return [
        Recorded(
            Problem(
                operator,
                tuple(map(tuple, shapes)),
                tuple(dtypes),
                tuple(map(bool, dense)),
                Product(*product) if product else None,
                choice,
            ),
            (capability[0], capability[1]),
            multiprocessors,
            tuple(KernelLaunch(kernels[kernel], blocks, share) for kernel, blocks, share in launches),
        )
        for (
            operator,
            shapes,
            dtypes,
            dense,
            product,
            choice,
            capability,
            multiprocessors,
            launches,
        ) in document["records"]
    ]


def _shortened(item: Recorded) -> Recorded:
    launches = tuple(
        KernelLaunch(
            replace(launch.kernel, name=launch.kernel.name[:_MOST_OF_A_NAME]), launch.blocks, launch.share
        )
        for launch in item.launches
    )
    return Recorded(item.problem, item.compute_capability, item.multiprocessors, launches)


@cache
def shipped_document() -> dict[str, Any]:
    """Return the file as it is."""
    text = read_data("recorded_kernels.json")
    found: dict[str, Any] = json.loads(text)
    return found
