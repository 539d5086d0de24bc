"""Writes what the kernel model is shipped with: distinct records of public traces, with a card of what
they are.

    python bench/occupancy/fit.py TRACES... -o python/xmem/data/recorded_kernels.json

The card's errors are those of leaving one model out (``leave_one_out.py``), so that no record was judged
by itself. What was measured on a GPU of ours is added behind them by ``measured.py --write``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import leave_one_out

from xmem.occupancy.kernel_data import document_of, text_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, help="traces or folders of them")
    parser.add_argument("-o", "--output", required=True, type=Path)
    arguments = parser.parse_args()
    traces = leave_one_out.read_all(arguments.traces)
    judged = [trace for trace in traces if trace.compute_capability == leave_one_out.JUDGED]
    errors = leave_one_out.judge(traces, judged)
    about = {
        "what": "Kernels that operators of PyTorch launched in public profiler traces: facts, not code",
        "how": "bench/occupancy/fit.py",
        "sources": [
            "AMD-AGI/TraceLens (MIT): tests/traces/h100, tests/traces/b200",
            "facebookresearch/HolisticTraceAnalysis (MIT): tests/data/trace_diff and negative_queue_length*",
            "pytorch/kineto (BSD): samples of the TensorBoard plugin, ResNet-50",
        ],
        "traces": [
            {
                "name": trace.name,
                "gpu": trace.gpu,
                "launches": len(trace.launches()),
                "launches_without_operator": len(trace.orphans),
            }
            for trace in traces
        ],
        "leave_one_model_out": errors,
    }
    document = document_of([call.recorded for trace in traces for call in trace.calls], about)
    about["public_records"] = len(document["records"])
    text = text_of(document)
    arguments.output.write_text(text, encoding="utf-8")
    print(f"{len(document['records'])} records, {len(document['kernels'])} kernels, {len(text)} bytes")


if __name__ == "__main__":
    main()
