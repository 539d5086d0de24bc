"""Ask another method for every row of a file of runs; the answers are estimates that the scorecard reads.

    python bench/accuracy/rivals/compare.py METHOD --csv RUNS.csv --python ENV/bin/python -o ESTIMATES.csv

The environment needs torch, torchvision and transformers; for kitsune and preflight the package too, where
PYTHONPATH finds it. Answers are written as they come; those that are there already are not asked for again.

    xmem-fast validate --runs RUNS.csv --estimates OURS.csv --estimates ESTIMATES.csv
"""

from __future__ import annotations

import argparse
import csv
import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from xmem.errors import XmemError
from xmem.validation.estimates import read_estimates
from xmem.validation.runs import IDENTITY, MeasuredRun, read_runs

METHODS = {
    "static": "static_analysis",
    "MemTracker": "mem_tracker",
    "torch-kitsune": "kitsune",
    "torch-preflight": "preflight",
}
_COLUMNS = (*IDENTITY, "way", "estimate_bytes", "estimated_oom", "seconds", "note")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--csv", type=Path, required=True, help="the runs")
    parser.add_argument("--python", required=True, help="of the environment")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=120, help="seconds that one answer may take")
    options = parser.parse_args()
    try:
        runs = read_runs(options.csv)
        known = {row.identity for row in read_estimates(options.output)} if options.output.exists() else set()
        ask_all(options, [run for run in runs if run.identity not in known])
    except (XmemError, OSError) as error:
        sys.exit(f"{error}")


def ask_all(options: argparse.Namespace, runs: list[MeasuredRun]) -> None:
    """One answer a job; rows with equal jobs share it."""
    rival = Rival(options.python, METHODS[options.method], options.timeout)
    answers: dict[str, dict[str, Any]] = {}
    is_new = not options.output.exists()
    with options.output.open("a", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        for run in runs:
            question = _question(run)
            if question not in answers:
                answers[question] = rival.ask(question)
            answer = answers[question]
            identity = dict(zip(IDENTITY, run.identity, strict=True))
            writer.writerow(
                {
                    **identity,
                    "way": options.method,
                    "estimate_bytes": answer.get("peak_bytes", ""),
                    "estimated_oom": "",
                    "seconds": answer.get("seconds", ""),
                    "note": answer.get("note", ""),
                }
            )
            file.flush()
            print(f"{run.title}: {answer}", file=sys.stderr, flush=True)
    rival.close()


def _question(run: MeasuredRun) -> str:
    """The job as ``workloads.Job`` takes it."""
    job = {
        "family": run.family.lower(),
        "model": run.model,
        "optimizer": run.optimizer,
        "batch": run.batch,
        "zero_grad": run.zero_grad,
    }
    return json.dumps(job)


class Rival:
    """The child; started anew when it takes too long or dies."""

    def __init__(self, python: str, module: str, timeout_s: float) -> None:
        self._command = [python, str(Path(__file__).with_name("answer.py")), module]
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()

    def ask(self, question: str) -> dict[str, Any]:
        """An answer, or a note of why there is none."""
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(question + "\n")
            process.stdin.flush()
            line = self._lines.get(timeout=self._timeout_s)
        except queue.Empty:
            self.close()
            return {"note": f"no answer in {self._timeout_s:g} s"}
        except BrokenPipeError:
            line = ""
        if not line:
            self.close()
            return {"note": "its process died"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the child."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._lines = queue.Queue()
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert self._process.stdout is not None
            threading.Thread(target=_pass_on, args=(self._process.stdout, self._lines), daemon=True).start()
        return self._process


def _pass_on(stream: IO[str], lines: queue.Queue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


if __name__ == "__main__":
    main()
