"""What the HTML report costs: seconds to write it, its size, and how soon a browser has it ready.

    python bench/bench_html.py TRACE... [--gpu NAME] [--repeats N] [--command "xmem-fast"] [--json]

`xmem-fast estimate` runs without and with `--html`, without and with advice, in turns, each in a process of
its own; the median of each is compared. The page is opened in a new headless Chromium (Debian: chromium;
dependency group: browser) and asked when, from the start of the navigation, it was ready for people
("interactive": everything drawn) and first painted. Traces of any size come from `bench/make_trace.py`: 5.4
million events make a million blocks.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_DEMO_BYTES, _DEMO_S = 3_000_000, 1.0
_LARGE_BYTES, _LARGE_S = 10_000_000, 2.0
_LARGE_TRACE_BYTES = 1_000_000_000
_MOST_OVERHEAD = 0.2


def main() -> int:
    parser = argparse.ArgumentParser(description="What the HTML report costs.")
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument("--gpu", default="rtx-3060")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--command", default="xmem-fast", help="how xmem-fast is called")
    parser.add_argument("--json", action="store_true", help="print one JSON object a trace")
    arguments = parser.parse_args()

    met = True
    with tempfile.TemporaryDirectory() as folder:
        for trace in arguments.traces:
            page = Path(folder) / "page.html"
            row = measured(trace, page, arguments.gpu, arguments.repeats, shlex.split(arguments.command))
            met &= bool(row["bars_met"])
            if arguments.json:
                print(json.dumps(row), flush=True)
            else:
                print(
                    f"{trace.name}: page of {row['page_bytes'] / 1e6:.2f} MB, ready after "
                    f"{row['interactive_s']:.2f} s, painted after {row['painted_s']:.2f} s; estimate "
                    f"{row['estimate_s']:.2f} s, with page {row['with_page_s']:.2f} s "
                    f"({row['overhead']:+.0%}), with advice in it {row['with_advice_s']:.2f} s; "
                    f"bars {'met' if row['bars_met'] else 'NOT met'}",
                    flush=True,
                )
    return 0 if met else 1


def measured(trace: Path, page: Path, gpu: str, repeats: int, command: list[str]) -> dict[str, object]:
    estimate = [*command, "estimate", str(trace), "--gpu", gpu, "--json"]
    with_page = [*estimate, "--html", str(page)]
    bare_s, with_page_s, with_advice_s = [], [], []
    for _ in range(repeats):
        bare_s.append(_seconds_of(estimate))
        with_page_s.append(_seconds_of([*with_page, "--no-advice"]))
        with_advice_s.append(_seconds_of(with_page))
    loads = [_load(page) for _ in range(repeats)]
    size = page.stat().st_size
    interactive_s = statistics.median(load[0] for load in loads)
    overhead = statistics.median(with_page_s) / statistics.median(bare_s) - 1
    large = trace.stat().st_size > _LARGE_TRACE_BYTES
    return {
        "trace": trace.name,
        "trace_bytes": trace.stat().st_size,
        "page_bytes": size,
        "interactive_s": interactive_s,
        "painted_s": statistics.median(load[1] for load in loads),
        "estimate_s": statistics.median(bare_s),
        "with_page_s": statistics.median(with_page_s),
        "with_advice_s": statistics.median(with_advice_s),
        "overhead": overhead,
        "bars_met": size < (_LARGE_BYTES if large else _DEMO_BYTES)
        and interactive_s < (_LARGE_S if large else _DEMO_S)
        and overhead < _MOST_OVERHEAD,
    }


def _seconds_of(command: list[str]) -> float:
    begin = time.perf_counter()
    status = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
    if status not in (0, 1):
        raise SystemExit(f"{shlex.join(command)}: exit status {status}")
    return time.perf_counter() - begin


def _load(page: Path) -> tuple[float, float]:
    """Seconds from the navigation to ready and to painted, in a new browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("chromium-browser"),
            args=["--no-sandbox"],
        )
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.goto(page.as_uri())
        # Asked from outside: the page lets no text be evaluated within it.
        while not opened.evaluate("performance.getEntriesByName('first-contentful-paint').length"):
            time.sleep(0.01)
        ready_ms, painted_ms = opened.evaluate(
            "['interactive', 'first-contentful-paint']"
            ".map((name) => performance.getEntriesByName(name)[0].startTime)"
        )
        browser.close()
    return ready_ms / 1e3, painted_ms / 1e3


if __name__ == "__main__":
    sys.exit(main())
