"""Run one benchmark script of Liger-Kernel and write what its memory part measured.

    python liger_rows.py OUTPUT SCRIPT TIMES MODES GARBAGE [arguments of the script]

The script is the project's own, unchanged. Two functions are replaced: the one that writes to its table, and
the one that repeats a call until its time is known, because without a GPU no time is. TIMES is ``short`` (two
calls), or a JSON file of published milliseconds, by which Triton's pattern of calls is followed, with each
loop cut at five. MODES is ``script``, or the modes that the memory part was run with, separated by commas,
where the script as it was committed has others. GARBAGE is ``collected`` between two points, so that no cycle
of references that only this run has keeps memory, or ``kept``, as in the project's own run.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton.testing

_LONGEST_LOOP = 5
_FLUSH_BYTES = 256 * 1024 * 1024

output, script, times, modes, garbage, *arguments = sys.argv[1:]
sys.argv = [script, *arguments]
sys.path.insert(0, str(Path(script).parent))
version_of = importlib.metadata.version
importlib.metadata.version = lambda name: "0" if name == "liger-kernel" else version_of(name)
import utils  # noqa: E402 - of the script's folder

published: dict[str, float] = {} if times == "short" else json.loads(Path(times).read_text())
milliseconds: float | None = None
results: list[dict[str, Any]] = []


def run_benchmarks(
    bench_test_fn: Callable[..., Any],
    kernel_name: str,
    metric_name: str,
    metric_unit: str,  # noqa: ARG001 - the scripts pass these by name and by place
    x_name: str,
    x_label: str,  # noqa: ARG001
    x_values: Sequence[Any],
    kernel_providers: Sequence[str],
    kernel_operation_modes: Sequence[str | None] = (None,),
    extra_benchmark_configs: Sequence[dict[str, Any]] | None = None,
    **_: Any,
) -> None:
    """Call the benchmark for each of its points, in the script's own order."""
    global milliseconds
    if metric_name == "memory" and modes != "script":
        kernel_operation_modes = modes.split(",")
    for config in extra_benchmark_configs or [{}]:
        for mode in kernel_operation_modes:
            for provider in kernel_providers:
                for x in x_values:
                    milliseconds = published.get(f"{kernel_name}|{provider}|{mode}|{x_name}|{x}")
                    point = {
                        "kernel": kernel_name,
                        "provider": provider,
                        "mode": mode,
                        "x_name": x_name,
                        "x": x,
                        "config": json.dumps(config, default=str),
                    }
                    try:
                        measured = bench_test_fn(
                            utils.SingleBenchmarkRunInput(
                                x=x,
                                kernel_provider=provider,
                                kernel_operation_mode=mode,
                                extra_benchmark_config=config,
                            )
                        )
                        point["mib"] = measured.y_50
                    except Exception as error:
                        point["error"] = repr(error)[:300]
                        torch.cuda.empty_cache()
                    if metric_name == "memory":
                        results.append(point)
                    if garbage == "collected":
                        gc.collect()


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[torch.Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    **_: Any,
) -> float | list[float]:
    """Call as ``triton.testing.do_bench`` would; the times that it gives mean nothing."""
    fn()
    flush = torch.empty(_FLUSH_BYTES // 4, dtype=torch.int, device="cuda")
    loops = 1
    if milliseconds:
        for _ in range(5):
            flush.zero_()
            fn()
        loops = min(_LONGEST_LOOP, max(1, int(rep / milliseconds)))
        for _ in range(min(_LONGEST_LOOP, max(1, int(warmup / milliseconds)))):
            fn()
    for _ in range(loops):
        for tensor in grad_to_none or ():
            tensor.grad = None
        flush.zero_()
        fn()
    return [1.0] * len(quantiles) if quantiles else 1.0


utils.run_benchmarks = run_benchmarks
triton.testing.do_bench = do_bench
triton.do_bench = do_bench
try:
    exec(compile(Path(script).read_text(), script, "exec"), {"__name__": "__main__", "__file__": script})
except (Exception, SystemExit) as error:
    results.append({"fatal": repr(error)[:500]})
    traceback.print_exc()
Path(output).write_text(json.dumps(results))
