"""Assembles the page: the script's drawings go in as data, everything else as HTML."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from xmem.breakdown.execution import execution_of
from xmem.breakdown.module_rows import module_rows_of
from xmem.estimation.busyness import occupancy_in
from xmem.files.writing import write_whole
from xmem.reports import offline_page
from xmem.reports.html.drawing import drawing_of
from xmem.reports.html.facts import card_of, facts_of
from xmem.reports.html.packing import json_for_script
from xmem.reports.html.source_view import source_view_of
from xmem.reports.html.static_plot import FRAME

if TYPE_CHECKING:
    from markupsafe import Markup

    from xmem.advice import Advised
    from xmem.estimation.analysis import Analysis

_MOST_KERNELS = 15
_FOLDER = Path(__file__).parent
_SCRIPTS = ("data.js", "curve.js", "instant.js", "bricks.js", "segments.js", "tree.js", "main.js")


def write_page(
    analysis: Analysis,
    path: str | os.PathLike[str],
    *,
    advised: Advised | None = None,
    with_source: bool = True,
) -> None:
    """Write the report as one file that needs nothing else.

    Args:
        analysis: The result of ``xmem.analyze``.
        path: File to write the page to.
        advised: Advice on making the job take less memory; without it the page has none.
        with_source: Whether it shows the text of source lines.

    Raises:
        OSError: The file cannot be written.
    """
    write_whole(path, page_of(analysis, advised=advised, with_source=with_source).encode())


def page_of(analysis: Analysis, *, advised: Advised | None = None, with_source: bool = True) -> str:
    """Return the report as the text of an HTML page; see ``write_page`` for the arguments."""
    holders = analysis.holders
    execution = execution_of(analysis)
    drawing = drawing_of(analysis, holders)
    occupancy = None if analysis.estimate.occupancy is None else occupancy_in(analysis.stages.trace)
    plot_style, library = _uplot()
    scripts = [library, *(_text(f"static/{name}") for name in _SCRIPTS)]
    markup = _markup()
    template = offline_page.environment(_FOLDER / "templates").get_template("page.html.j2")
    return template.render(
        **facts_of(analysis.estimate),
        style=markup(plot_style + offline_page.style(_FOLDER / "static" / "page.css")),
        scripts=[markup(script) for script in scripts],
        script_hashes=[markup(_hash(script)) for script in scripts],
        data=markup(json_for_script(drawing.data)),
        plot=drawing.plot,
        frame=FRAME,
        instant=drawing.at_peak,
        stack=drawing.categories,
        has_active=drawing.data["curve"]["active"] is not None,
        bricks_text=drawing.bricks_text,
        segments_text=drawing.segments_text,
        tree=module_rows_of(analysis, execution),
        source=source_view_of(analysis, execution, with_source=with_source),
        card=card_of(analysis.estimate),
        occupancy=occupancy,
        occupancy_rows=_MOST_KERNELS,
        advised=advised,
        sections=_sections(has_advice=advised is not None, has_occupancy=occupancy is not None),
    )


def _sections(*, has_advice: bool, has_occupancy: bool) -> list[tuple[str, str]]:
    sections = [
        ("summary", "Summary"),
        ("curve", "Over time"),
        ("bricks", "Blocks"),
        ("segments", "Segments"),
        ("modules", "Modules"),
        ("source", "Source"),
        ("largest", "Largest"),
        ("card", "On the card"),
        ("occupancy", "Occupancy"),
        ("advice", "Advice"),
        ("basis", "Basis"),
    ]
    absent = {"advice": not has_advice, "occupancy": not has_occupancy}
    return [section for section in sections if not absent.get(section[0], False)]


def _markup() -> type[Markup]:
    """Return the type of text that the template inserts unchanged; every other text is escaped."""
    from markupsafe import Markup

    return Markup


def _uplot() -> tuple[str, str]:
    """Return uPlot's style and script from the package ``uplot-python``, without importing it."""
    found = importlib.util.find_spec("uplot")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "static"
    return (
        (folder / "uPlot.min.css").read_text(encoding="utf-8"),
        (folder / "uPlot.iife.js").read_text(encoding="utf-8"),
    )


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """Return the hash of a script; the page only runs scripts with such a hash."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
