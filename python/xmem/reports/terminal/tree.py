"""The tree of modules and the source lines with the memory that each changed, in JSON.

The keys ``name``, ``children``, ``delta_allocated_bytes``, ``delta_reserved_bytes`` and the same in ``_gb``
are FineProfiler's; a GB is 2^30 bytes, as it is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from xmem.breakdown.execution import Delta, execution_of
from xmem.breakdown.lines import LineBytes, bytes_by_line
from xmem.breakdown.modules import ModuleNode, module_tree

if TYPE_CHECKING:
    from xmem.estimation.analysis import Analysis

_GIB = 1 << 30
_SCHEMA_VERSION = 1


def write_tree(analysis: Analysis, file: IO[bytes], *, with_source: bool = True) -> int:
    """Write the modules and lines of a run.

    Args:
        analysis: The estimate and the data behind it.
        file: File to write to, in UTF-8.

    Returns:
        The number of modules.
    """
    execution = execution_of(analysis)
    tree = module_tree(analysis, execution)
    document = {
        "schema_version": _SCHEMA_VERSION,
        "iteration": analysis.estimate.peak.iteration,
        "peak_allocated_bytes": analysis.estimate.peak_allocated_bytes,
        **_module(tree.root),
        "lines": [_line(line, with_source) for line in bytes_by_line(analysis, execution)],
    }
    file.write(json.dumps(document).encode() + b"\n")
    return len(tree) - 1


def _module(node: ModuleNode) -> dict[str, Any]:
    return {
        "name": node.name,
        "path": node.path,
        **_deltas(node.forward, node.backward),
        **_peak(node.category),
        "peak_forward_bytes": node.forward_bytes,
        "peak_backward_bytes": node.backward_bytes,
        "peak_persistent_bytes": node.persistent_bytes,
        "tensor_bytes_by_category": dict(node.tensors),
        "children": [_module(child) for child in node.children],
    }


def _line(line: LineBytes, with_source: bool) -> dict[str, Any]:
    return {
        "file": line.file,
        "line": line.line,
        "function": line.function,
        "text": line.text if with_source else "",
        **_deltas(line.forward, line.backward),
        **_peak(line.category),
    }


def _peak(category: Mapping[str, int]) -> dict[str, Any]:
    return {"peak_bytes": sum(category.values()), "peak_bytes_by_category": dict(category)}


def _deltas(forward: Delta | None, backward: Delta | None) -> dict[str, Any]:
    """Return the changes of both passes together, then of each; null where they are unknown."""
    both = None if forward is None or backward is None else forward + backward
    return {**_delta(both), "forward": _delta(forward), "backward": _delta(backward)}


def _delta(delta: Delta | None) -> dict[str, Any]:
    allocated, reserved = (None, None) if delta is None else (delta.allocated_bytes, delta.reserved_bytes)
    return {
        "delta_allocated_bytes": allocated,
        "delta_reserved_bytes": reserved,
        "delta_allocated_gb": None if allocated is None else allocated / _GIB,
        "delta_reserved_gb": None if reserved is None else reserved / _GIB,
    }
