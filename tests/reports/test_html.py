"""The HTML report: its figures are those of the analysis, and a real Chromium shows it as it should."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import xmem
from training_sample import training
from xmem.advice import advise
from xmem.breakdown.bricks import bricks_around_peak
from xmem.breakdown.composition import categories_at, composition_at
from xmem.breakdown.curve import iterations_of, phases_of, shown_requests
from xmem.breakdown.segment_map import FREE, segment_map_of
from xmem.cli.main import app
from xmem.reports.html import page_of, write_page
from xmem.reports.html.packing import json_for_script, pack_units
from xmem.testing.trace_builder import TraceBuilder
from xmem.text.units import format_bytes

ROOT = Path(__file__).parents[2]
TRACES = Path(os.environ.get("XMEM_SHARED", ROOT.parent / "shared")) / "data" / "traces"
SCREENSHOTS = ROOT / "build" / "screenshots"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
INJECTION = "</script><script>window.injected = 1</script><img src=x onerror='window.injected = 2'>"

needs_browser = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="needs Chromium and playwright (Debian: chromium; dependency group: browser)",
)


@pytest.fixture(scope="module")
def small() -> xmem.Analysis:
    return xmem.analyze(training().bytes(), gpu="rtx-3060")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> xmem.Analysis:
    """About 20,000 blocks of a chain of layers: more than is drawn one by one."""
    trace = tmp_path_factory.mktemp("large") / "trace.json"
    command = [sys.executable, str(ROOT / "bench" / "make_trace.py"), "--events", "1e5", "-o", str(trace)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return xmem.analyze(trace, gpu="rtx-3060")


@pytest.fixture(params=["small", "large"])
def analysis(request: pytest.FixtureRequest) -> xmem.Analysis:
    found: xmem.Analysis = request.getfixturevalue(request.param)
    return found


def injected() -> TraceBuilder:
    """The sample run with another layer, whose module, line and tensor are named like markup."""
    trace = training()
    trace.line(f"{INJECTION}.py", 7, 250, 260).module(f"Net.{INJECTION}", 251, 259)
    trace.operator("aten::linear", 252, 258).alloc(0x77, 64 << 20, 255)
    return trace


def data_of(page: str) -> dict[str, Any]:
    """What the page's script gets, columns as arrays."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    dtypes = {"u8": "<u1", "u32": "<u4", "i32": "<i4", "f64": "<f8"}

    def unpacked(value: dict[str, Any]) -> Any:
        (kind, text), *others = value.items() if value else [("", "")]
        if others or kind not in dtypes or not isinstance(text, str):
            return value
        return np.frombuffer(base64.b64decode(text), dtypes[kind])

    loaded: dict[str, Any] = json.loads(found[1], object_hook=unpacked)
    return loaded


# --- figures ---


def test_drawn_instants_hold_the_ends_and_every_peak(analysis: xmem.Analysis) -> None:
    shown, replay = shown_requests(analysis.replay), analysis.replay
    assert len(shown) <= 1300
    assert (np.diff(shown) > 0).all()
    for peak, gauge in (
        (replay.peak_allocated, replay.timeline.allocated_bytes),
        (replay.peak_reserved, replay.timeline.reserved_bytes),
        (replay.peak_active, replay.timeline.active_bytes),
    ):
        assert gauge[shown].max() == peak.bytes
        assert peak.request in shown
    assert (shown[0], shown[-1]) == (0, len(replay.timeline.allocated_bytes) - 1)


def test_compositions_add_up_to_what_is_allocated_at_every_instant(analysis: xmem.Analysis) -> None:
    shown, requests = shown_requests(analysis.replay), analysis.stages.requests
    composition = composition_at(shown, requests, analysis.replay, analysis.holders, most_modules=60)
    allocated = analysis.replay.timeline.allocated_bytes[shown]
    assert np.array_equal(composition.by_category.sum(axis=0), allocated)
    assert np.array_equal(composition.by_module.sum(axis=0), allocated)
    assert (composition.by_category >= 0).all()
    assert (composition.by_module >= 0).all()


def test_the_composition_at_the_peak_is_that_of_the_blocks_alive(analysis: xmem.Analysis) -> None:
    peak = analysis.replay.peak_allocated.request
    found = categories_at(np.array([peak]), analysis.stages.requests, analysis.replay, analysis.holders)[:, 0]
    alive = analysis.holders.alive_at(peak)
    size = analysis.replay.placement.size_bytes[alive]
    for category in range(len(found)):
        assert found[category] == size[analysis.holders.category[alive] == category].sum()


def test_iterations_and_phases_are_those_of_the_sample(small: xmem.Analysis) -> None:
    stages = small.stages
    assert [span.label for span in iterations_of(stages.requests, stages.workload)] == ["0", "1"]
    labels = [span.label for span in phases_of(stages.requests, stages.workload)]
    assert labels.count("forward") == labels.count("backward") == 2


def test_bricks_are_the_largest_by_bytes_and_time_and_lie_in_their_window(large: xmem.Analysis) -> None:
    holders, replay = large.holders, large.replay
    bricks = bricks_around_peak(large.stages.requests, replay, large.stages.workload, holders)
    assert bricks.left_out > 0
    first, last = bricks.request[0], bricks.request[-1]
    assert replay.peak_allocated.request in bricks.request
    lived = np.minimum(holders.free_request, last + 1) - np.maximum(holders.alloc_request, first)
    area = np.maximum(lived, 0) * replay.placement.size_bytes
    others = np.setdiff1d(np.arange(len(holders)), bricks.blocks)
    assert area[bricks.blocks].min() >= area[others].max()
    assert (np.diff(holders.alloc_request[bricks.blocks]) > 0).all()


def test_the_map_of_segments_holds_all_reserved_bytes(analysis: xmem.Analysis) -> None:
    found = segment_map_of(analysis, analysis.holders)
    reserved = int(found.segment_bytes.sum()) + found.bytes_left_out
    assert reserved == analysis.replay.peak_reserved.bytes
    for segment, size in enumerate(found.segment_bytes):
        inside = found.piece_segment == segment
        assert found.piece_bytes[inside].sum() == size
        ends = found.piece_offset_bytes[inside] + found.piece_bytes[inside]
        assert np.array_equal(ends[:-1], found.piece_offset_bytes[inside][1:])
    free = found.piece_bytes[found.piece_category == FREE]
    assert found.free_bytes == free.sum() or found.segments_left_out
    card = {part.name: part.bytes for part in analysis.estimate.card}
    assert found.free_bytes == card["fragmentation"] + card["cached"]


def test_small_pieces_of_one_category_are_drawn_as_one(large: xmem.Analysis) -> None:
    found = segment_map_of(large, large.holders)
    merged = found.piece_blocks > 1
    assert (found.piece_block[merged] == -1).all()
    alone = found.piece_block[found.piece_blocks == 1]
    size = large.replay.placement.size_bytes
    assert np.array_equal(
        size[alone[alone >= 0]], found.piece_bytes[(found.piece_blocks == 1) & (found.piece_block >= 0)]
    )


def test_the_page_carries_the_figures_of_the_estimate(small: xmem.Analysis) -> None:
    page = page_of(small)
    data = data_of(page)
    curve = data["curve"]
    assert curve["allocated"].max() * data["unit_bytes"] == small.estimate.peak_allocated_bytes
    assert curve["reserved"].max() * data["unit_bytes"] == small.estimate.peak_reserved_bytes
    assert curve["request"][data["peak"]] == small.estimate.peak.request_index
    by_category = curve["by_category"].reshape(len(data["categories"]), -1)[:, data["peak"]]
    named = dict(zip(data["categories"], by_category.tolist(), strict=True))
    held = {name: units * data["unit_bytes"] for name, units in named.items() if units}
    assert held == small.estimate.breakdown.category
    assert "Fits on RTX 3060 12 GB" in page
    assert len(page) < 400_000


def test_sizes_beyond_32_bits_of_units_are_not_cut() -> None:
    assert list(pack_units(np.array([(2**32 - 1) * 512, 1]))) == ["u32"]
    large = pack_units(np.array([2**32 * 512]))
    assert np.frombuffer(base64.b64decode(large["f64"]), "<f8").tolist() == [2.0**32]


def test_a_job_that_does_not_fit_says_where_it_ends() -> None:
    page = page_of(xmem.analyze(training().bytes(), gpu="rtx-3060", capacity="160MiB"))
    assert "Does not fit on" in page
    assert "It runs out of memory outside of all iterations asking for" in page


def test_without_a_gpu_there_is_no_verdict() -> None:
    page = page_of(xmem.analyze(training().bytes()))
    assert "No GPU was named" in page
    assert data_of(page)["capacity_bytes"] is None


def test_advice_is_shown_where_it_was_sought(small: xmem.Analysis) -> None:
    advised = advise(small)
    assert advised.advice
    first = replace(advised.advice[0], remedy="smaller logits <b>", where="train.py:7")
    page = page_of(small, advised=replace(advised, advice=(first, *advised.advice[1:])))
    assert 'id="advice"' in page
    assert format_bytes(first.saved_bytes) in page
    assert "smaller logits &lt;b&gt;" in page
    assert "No remedy that was tried" in page_of(small, advised=replace(advised, advice=(), combination=None))
    assert 'id="advice"' not in page_of(small)


def test_names_cannot_become_markup() -> None:
    page = page_of(xmem.analyze(injected().bytes()))
    assert "&lt;img src=x" in page
    assert "<img" not in page
    assert "</script><script>window" not in page
    assert json_for_script({INJECTION: "&"}).isascii()
    assert not set("<>&") & set(json_for_script({INJECTION: "\u2028&"}))


def test_source_is_read_below_the_current_folder_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "project"
    here.mkdir()
    outside = tmp_path / "train.py"
    outside.write_text("\n".join(f"secret {number}" for number in range(1, 20)))
    monkeypatch.chdir(here)
    analysis = xmem.analyze(training().bytes())
    assert "secret" not in page_of(analysis)
    (here / "train.py").symlink_to(outside)
    assert "secret" not in page_of(analysis)
    (here / "train.py").unlink()
    os.mkfifo(here / "train.py")
    page_of(analysis)  # does not wait for somebody to write to it
    (here / "train.py").unlink()
    lines = [f"visible_{number} = 1" for number in range(1, 20)]
    (here / "train.py").write_text("\n".join(lines))
    page = page_of(analysis)
    assert "visible_3 =" in page  # line 7 and four lines around it
    assert "visible_2 =" not in page
    assert "visible_" not in page_of(analysis, with_source=False)
    lines[3:5] = ["def other():", "    concealed = 1"]
    lines[7] = 'login(token="concealed")'
    (here / "train.py").write_text("\n".join(lines))
    page = page_of(analysis)
    assert "visible_3 =" in page
    assert "concealed" not in page  # nor what another function does, nor a secret


def test_slack_is_told_where_categories_of_the_page_have_it_and_those_of_the_estimate_do_not() -> None:
    analysis = xmem.analyze(training().bytes())
    categories = dict(analysis.estimate.breakdown.category)
    assert "allocator_slack" not in categories
    assert "is slack in blocks" not in page_of(analysis)
    breakdown = replace(analysis.estimate.breakdown, category={**categories, "allocator_slack": 3 << 20})
    told = page_of(replace(analysis, estimate=replace(analysis.estimate, breakdown=breakdown)))
    assert "3.00 MiB at the peak is slack in blocks" in told


def test_the_command_writes_the_page_and_says_where(tmp_path: Path) -> None:
    trace, page = training().write(tmp_path / "trace.json"), tmp_path / "page.html"
    result = CliRunner().invoke(app, ["estimate", str(trace), "--json", "--html", str(page)])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["schema_version"] == 1
    assert f"{page}: a page" in result.stderr
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_page_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    trace = training().write(tmp_path / "trace.json")
    result = CliRunner().invoke(app, ["estimate", str(trace), "--html", str(tmp_path / "no" / "page.html")])
    assert result.exit_code == 2
    page = tmp_path / "no" / "page.html"
    assert f"--html {page} cannot be written" in result.stderr


# --- in a browser ---


@dataclass
class Opened:
    """A page in the browser, and what went wrong while it was open."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def picture(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def browse(chromium: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens the page of an analysis; at the end nothing may have gone wrong, and nothing been asked for."""
    opened: list[Opened] = []

    def open_(analysis: xmem.Analysis, anchor: str = "", **context: Any) -> Opened:
        file = tmp_path / f"page{len(opened)}.html"
        write_page(analysis, file)
        context = {"viewport": {"width": 1280, "height": 900}, **context}
        page = chromium.new_context(**context).new_page()
        found = Opened(page)
        page.on("console", lambda message: found.complaints.append(message.text))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("request", lambda request: found.requests.append(request.url))
        page.goto(file.as_uri() + anchor)
        opened.append(found)
        return found

    yield open_
    for one in opened:
        assert one.complaints == []
        assert len(one.requests) == 1
        one.page.context.close()


def text(opened: Opened, selector: str) -> str:
    return str(opened.page.inner_text(selector))


@needs_browser
def test_it_opens_and_is_ready(browse: Any, large: xmem.Analysis) -> None:
    opened = browse(large)
    assert opened.page.evaluate("performance.getEntriesByName('interactive').length") == 1
    assert text(opened, "#instant-title") == "At the peak"
    assert opened.page.locator("#plot canvas").count() == 1
    assert opened.page.locator(".static-plot").is_visible() is False
    opened.picture("large")


@needs_browser
def test_hovering_the_curve_tells_what_is_allocated(browse: Any, small: xmem.Analysis) -> None:
    opened = browse(small)
    over = opened.page.locator("#plot .u-over")
    over.hover()
    assert opened.page.locator("#tip").is_visible()
    assert re.search(r"[\d.]+ MiB allocated\n[\d.]+ MiB reserved", text(opened, "#tip"))
    opened.page.mouse.move(5, 5)
    assert opened.page.locator("#tip").is_hidden()


@needs_browser
def test_a_click_shows_the_instant_and_names_it_in_the_address(browse: Any, small: xmem.Analysis) -> None:
    opened = browse(small)
    over = opened.page.locator("#plot .u-over")
    over.scroll_into_view_if_needed()
    over.click(position={"x": 3, "y": 100})
    assert text(opened, "#instant-title").startswith("At ")
    request = int(re.search(r"#t=(\d+)$", opened.page.url)[1])  # type: ignore[index]
    allocated = int(small.replay.timeline.allocated_bytes[request])
    assert text(opened, "#instant-text").startswith(f"{allocated / 2**20:.2f} MiB allocated")
    again = browse(small, f"#t={small.estimate.peak.request_index}")
    assert text(again, "#instant-title") == "At the peak"
    other = browse(small, "#t=0")
    assert text(other, "#instant-text").startswith("4.00 MiB allocated")


@needs_browser
def test_the_curve_is_usable_by_keys(browse: Any, small: xmem.Analysis) -> None:
    opened = browse(small)
    opened.page.focus("#plot")
    opened.page.keyboard.press("Home")
    assert opened.page.url.endswith("#t=0")
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.url.endswith("#t=1")
    opened.page.keyboard.press("p")
    assert text(opened, "#instant-title") == "At the peak"


@needs_browser
def test_the_axis_counts_time_or_requests(browse: Any, small: xmem.Analysis) -> None:
    opened = browse(small)
    opened.page.click("[data-axis=request]")
    assert opened.page.get_attribute("[data-axis=request]", "aria-pressed") == "true"
    assert opened.page.get_attribute("[data-axis=time]", "aria-pressed") == "false"
    assert opened.page.locator("#plot canvas").count() == 1


@needs_browser
def test_bricks_and_segments_tell_their_blocks(browse: Any, small: xmem.Analysis) -> None:
    opened = browse(small)
    for canvas in ("#bricks-canvas", "#segments-canvas"):
        opened.page.focus(canvas)
        opened.page.keyboard.press("ArrowRight")
        said = text(opened, canvas.replace("canvas", "said"))
        assert "parameter" in said
        assert "born outside of all iterations (request " in said
        assert "never freed" in said
    box = opened.page.locator("#bricks-canvas").bounding_box()
    opened.page.locator("#bricks-canvas").hover(position={"x": 120, "y": box["height"] - 26})
    assert "4.00 MiB parameter" in text(opened, "#tip")
    assert "Net.fc" in text(opened, "#tip")
    opened.page.locator("#segments-canvas").hover(position={"x": 90, "y": 8})
    assert "in a segment of" in text(opened, "#tip")


@needs_browser
def test_the_tree_opens_by_mouse_and_by_keys(browse: Any, small: xmem.Analysis) -> None:
    opened = browse(small)
    row = opened.page.locator("#tree tr", has=opened.page.locator("th[title='Net']"))
    child = opened.page.locator("#tree tr", has=opened.page.locator("th[title='Net.fc']"))
    assert row.get_attribute("aria-expanded") == "true"
    row.click()
    assert row.get_attribute("aria-expanded") == "false"
    assert child.is_hidden()
    opened.page.keyboard.press("ArrowRight")
    assert child.is_visible()
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.evaluate("document.activeElement.getAttribute('aria-level')") == "3"
    opened.page.keyboard.press("ArrowLeft")
    opened.page.keyboard.press("ArrowLeft")
    assert child.is_hidden()


@needs_browser
def test_dark_by_preference_and_by_button(browse: Any, small: xmem.Analysis) -> None:
    opened = browse(small, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = opened.page.evaluate(background)
    opened.picture("dark")
    opened.page.click("#theme")
    light = opened.page.evaluate(background)
    assert (dark, light) == ("rgb(20, 22, 26)", "rgb(251, 251, 250)")
    opened.page.click("#theme")
    assert opened.page.evaluate(background) == dark


@needs_browser
def test_without_a_script_it_is_a_summary(browse: Any, small: xmem.Analysis) -> None:
    opened = browse(small, java_script_enabled=False)
    assert opened.page.locator(".static-plot svg").is_visible()
    assert opened.page.locator("#plot").is_hidden()
    assert "15.00 MiB" in text(opened, "#instant-text")
    assert "gradient" in text(opened, "#instant-categories")
    assert opened.page.locator("#tree tr", has=opened.page.locator("th[title='Net.fc']")).is_visible()
    opened.picture("without_script")


@needs_browser
@pytest.mark.parametrize("width", [360, 768])
def test_a_narrow_window_does_not_scroll_sideways(width: int, browse: Any, small: xmem.Analysis) -> None:
    opened = browse(small, viewport={"width": width, "height": 780})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    opened.picture(f"narrow_{width}")


@needs_browser
def test_it_prints_on_a4(browse: Any, small: xmem.Analysis) -> None:
    opened = browse(small, color_scheme="dark")
    opened.page.emulate_media(media="print")
    assert opened.page.locator(".static-plot").is_visible()
    assert opened.page.locator("#plot").is_hidden()
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    pdf = opened.page.pdf(path=SCREENSHOTS / "printed.pdf", format="A4")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 6


@needs_browser
def test_names_like_markup_stay_names(browse: Any) -> None:
    opened = browse(xmem.analyze(injected().bytes()))
    assert opened.page.evaluate("window.injected") is None
    assert opened.page.locator("img").count() == 0
    assert "<img" in text(opened, "#instant-modules")
    opened.page.focus("#segments-canvas")
    opened.page.keyboard.press("ArrowRight")
    assert "</script>" in text(opened, "#segments-said")


@needs_browser
@pytest.mark.parametrize("name", ["ddp_training_v100", "t4_toy_training_amp"])
def test_a_real_gpu_trace(name: str, browse: Any) -> None:
    trace = TRACES / f"{name}.json.gz"
    if not trace.exists():
        pytest.skip(f"needs {trace}")
    opened = browse(xmem.analyze(trace, gpu="v100-16gb"))
    assert text(opened, "#instant-title") == "At the peak"
    opened.picture(name)


def test_a_line_with_a_tab_inside_is_the_same_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = training()
    assert trace.metadata is not None
    trace.metadata["lines"] = {"train.py:7": {"function": "main", "text": "seven = 1\t# of them"}}
    lines = [f"visible_{number} = 1" for number in range(1, 20)]
    lines[6] = "seven = 1\t# of them"
    (tmp_path / "train.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    assert "visible_3 =" in page_of(xmem.analyze(trace.bytes()))
