"""``xmem-fast diff`` as typed: output, streams and exit statuses."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from command_line import xmem_fast
from training_sample import MIB, training

needs_jinja2 = pytest.mark.skipif(
    importlib.util.find_spec("jinja2") is None, reason="jinja2 is not installed"
)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return training(30 * MIB).write(tmp_path / "small.json")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return training(50 * MIB).write(tmp_path / "large.json")


def estimate_of(trace: Path) -> Path:
    file = trace.with_suffix(".estimate")
    assert xmem_fast("estimate", trace, "-o", file).exit_code == 0
    return file


def test_text(small: Path, large: Path) -> None:
    result = xmem_fast("diff", small, large)
    assert result.exit_code == 0
    assert result.stdout.startswith("Grew by 20.00 MiB (")
    assert "- +20.00 MiB activations of Net.fc (x1.67) from train.py:7" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert xmem_fast("diff", large, small).stdout.startswith("Shrank by 20.00 MiB (")


def test_json_is_one_object_whatever_the_sides_are(small: Path, large: Path) -> None:
    changes = []
    for before in (small, estimate_of(small)):
        for after in (large, estimate_of(large)):
            result = xmem_fast("diff", before, after, "--json")
            assert result.exit_code == 0
            data: dict[str, Any] = json.loads(result.stdout)
            changes.append({size["name"]: size["change_bytes"] for size in data["sizes"]})
            assert sum(path["change_bytes"] for path in data["paths"]) == changes[-1]["peak_allocated"]
            assert bool(data["blocks"]) == (before == small and after == large)
    assert all(change == changes[0] for change in changes)


def test_standard_input_is_one_run_only() -> None:
    result = xmem_fast("diff", "-", "-")
    assert result.exit_code == 2
    assert "- cannot be used for both runs; read at most one from standard input" in result.stderr


@pytest.mark.parametrize(
    ("limit", "status"),
    [("19MiB", 1), ("20MiB", 0), ("1%", 1), ("1000%", 0), ("0", 1), ("0%", 1)],
)
def test_fails_on_growth(limit: str, status: int, small: Path, large: Path) -> None:
    grown = xmem_fast("diff", small, large, "--fail-on-growth", limit)
    assert grown.exit_code == status
    assert ("grew by more than" in grown.stderr) == bool(status)
    assert xmem_fast("diff", large, small, "--fail-on-growth", limit).exit_code == 0
    assert xmem_fast("diff", small, small, "--fail-on-growth", limit).exit_code == 0


def test_the_target_is_for_traces(small: Path, large: Path) -> None:
    data = json.loads(xmem_fast("diff", small, large, "--capacity", "2GiB", "--json").stdout)
    assert (data["fits_before"], data["fits_after"]) == (True, True)
    assert data["settings"] == []
    half = json.loads(xmem_fast("diff", estimate_of(small), large, "--gpu", "rtx-3060", "--json").stdout)
    assert {"name": "gpu", "before": None, "after": "rtx-3060"} in half["settings"]
    both = xmem_fast("diff", estimate_of(small), estimate_of(large), "--gpu", "rtx-3060")
    assert (both.exit_code, both.stdout) == (2, "")
    assert "traces" in both.stderr


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        (b"", "empty"),
        (b'{"schema_version": 1', "damaged"),
        (b'{"schema_version": 1, "peak": {}}', "damaged"),
        (b'{"schema_version": 7}', "schema version 1"),
        (b"\x00\x01\x02", "other.json"),
    ],
)
def test_bad_input(contents: bytes, says: str, small: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_bytes(contents)
    for sides in ((small, other), (other, small)):
        result = xmem_fast("diff", *sides)
        assert (result.exit_code, result.stdout) == (3, "")
        assert says in result.stderr
        assert "other.json" in result.stderr


def test_missing_file(small: Path, tmp_path: Path) -> None:
    result = xmem_fast("diff", small, tmp_path / "missing.json")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "missing.json" in result.stderr


@pytest.mark.parametrize("limit", ["much", "-5%", "5 %%"])
def test_an_invalid_limit(limit: str, small: Path) -> None:
    result = xmem_fast("diff", small, small, f"--fail-on-growth={limit}")
    assert (result.exit_code, result.stdout) == (2, "")


class Page(HTMLParser):
    """What a page says, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words += data
        if self.tags and self.tags[-1] in ("h1", "h2"):
            self.headings.append(data.strip())


def headings(page: Page) -> Iterator[str]:
    return (heading for heading in page.headings if heading)


@needs_jinja2
def test_page(small: Path, large: Path, tmp_path: Path) -> None:
    file = tmp_path / "diff.html"
    result = xmem_fast("diff", small, large, "--html", file)
    assert result.exit_code == 0
    page = Page(file.read_text(encoding="utf-8"))
    assert page.loads == []
    assert "script" not in page.tags
    found = list(headings(page))
    assert found[0].startswith("Grew by 20.00 MiB")
    assert {"Why", "From before to after", "By module", "By source line", "Blocks at the peak"} <= set(found)
    assert "+20.00 MiB activations of Net.fc" in page.words
    assert file.stat().st_size < 100_000


@needs_jinja2
def test_page_that_cannot_be_written(small: Path, tmp_path: Path) -> None:
    result = xmem_fast("diff", small, small, "--html", tmp_path / "no" / "such.html")
    assert result.exit_code == 2
    assert "No such file" in result.stderr


@needs_jinja2
def test_page_escapes_names(tmp_path: Path, small: Path) -> None:
    other = training(50 * MIB)
    other.metadata["argv"] = ["<img src=x onerror=alert(1)>.py"]  # type: ignore[index]
    file = tmp_path / "diff.html"
    assert xmem_fast("diff", small, other.write(tmp_path / "<b>.json"), "--html", file).exit_code == 0
    assert "img" not in Page(file.read_text(encoding="utf-8")).tags


@needs_jinja2
def test_page_in_a_browser(small: Path, large: Path, tmp_path: Path) -> None:
    """No console error, nothing wider than the window, readable in light and dark and on a telephone."""
    sync_api = pytest.importorskip("playwright.sync_api")
    browser_path = next(
        (path for path in map(Path, ("/usr/bin/chromium", "/usr/bin/chromium-browser")) if path.exists()),
        None,
    )
    if browser_path is None:
        pytest.skip("there is no Chromium")
    file = tmp_path / "diff.html"
    xmem_fast("diff", small, large, "--html", file)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(browser_path), args=["--no-sandbox"])
        backgrounds = set()
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 400, "height": 800}, color_scheme=scheme)
            said: list[str] = []
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.goto(file.as_uri())
            assert said == []
            assert page.evaluate("document.documentElement.scrollWidth") <= 400
            assert page.locator(".waterfall .bar.more").first.bounding_box()["width"] >= 1
            backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(backgrounds) == 2
        browser.close()


def test_a_name_that_is_not_utf_8_does_not_spoil_the_page(tmp_path: Path) -> None:
    trace = training()
    trace.metadata = {"format": 1, "argv": ["train.py", "NAME"]}
    before, page = tmp_path / "before.json", tmp_path / "page.html"
    before.write_bytes(trace.bytes().replace(b'"NAME"', b'"\\udc80"'))
    assert xmem_fast("diff", before, training().write(tmp_path / "after.json"), "--html", page).exit_code == 0
    assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")
