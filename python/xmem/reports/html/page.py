"""Puts the page together: what is drawn by its script goes in as data, all else as HTML."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from xmem.attribution import Category, Phase
from xmem.errors import ConfigError
from xmem.reports.html.bricks import Bricks, bricks_around_peak
from xmem.reports.html.composition import Composition, composition_at
from xmem.reports.html.curve import Span, iterations_of, phases_of, shown_requests
from xmem.reports.html.module_rows import module_rows_of
from xmem.reports.html.packing import UNIT_BYTES, NamesUsed, json_for_script, pack, pack_units
from xmem.reports.html.segment_map import FREE, SegmentMap, segment_map_of
from xmem.reports.html.source_view import source_view_of
from xmem.reports.html.static_plot import STACKED, static_plot
from xmem.units import format_bytes

if TYPE_CHECKING:
    import jinja2

    from xmem.holders import Holders
    from xmem.pipeline import Analysis

_FOLDER = Path(__file__).parent
_SCRIPTS = ("data.js", "curve.js", "instant.js", "bricks.js", "segments.js", "tree.js", "main.js")
_NEEDED = ("jinja2", "uplot", "tsdownsample")
_MODULES_LISTED = 15
_LARGEST = 25


class Advice(Protocol):
    """A remedy that was replayed.

    Attributes:
        remedy: What to do.
        saved_bytes: By how much it lowers the peak.
        where: Module or source line, None where it is the whole job.
        change: What to write.
        cost: What it costs in exchange.
    """

    @property
    def remedy(self) -> str: ...
    @property
    def saved_bytes(self) -> int: ...
    @property
    def where(self) -> str | None: ...
    @property
    def change(self) -> str | None: ...
    @property
    def cost(self) -> str | None: ...


def write_page(
    analysis: Analysis,
    path: str | os.PathLike[str],
    *,
    advice: Iterable[Advice] = (),
    show_packages: bool = False,
) -> None:
    """Write the report as one file that needs nothing else.

    Args:
        analysis: What ``xmem.analyze`` returns.
        path: Where the page goes.
        advice: Remedies, most bytes first.
        show_packages: Name the lines of installed packages too, in place of the user's own that called them.

    Raises:
        ConfigError: The packages of the extra ``report`` are missing.
    """
    Path(path).write_text(page_of(analysis, advice=advice, show_packages=show_packages), encoding="utf-8")


def page_of(analysis: Analysis, *, advice: Iterable[Advice] = (), show_packages: bool = False) -> str:
    """The report as the text of an HTML page; the arguments are those of ``write_page``."""
    _require_packages()
    style, library = _uplot()
    drawing = _drawing_of(analysis, show_packages=show_packages)
    scripts = [library, *(_text(f"static/{name}") for name in _SCRIPTS)]
    return _template().render(
        **_texts(analysis),
        style=style + _text("static/page.css"),
        scripts=scripts,
        script_hashes=[_hash(script) for script in scripts],
        data=json_for_script(drawing.data),
        advice=list(advice),
        instant=_instant(drawing.composition, drawing.module_labels, drawing.peak),
        plot=drawing.plot,
        stack=[category.label for category in STACKED if drawing.composition.by_category[int(category)].any()],
        has_active=drawing.data["curve"]["active"] is not None,
        bricks_text=drawing.bricks_text,
        segments_text=_segments_text(drawing.segments),
        tree=module_rows_of(analysis),
        source=source_view_of(analysis, show_packages=show_packages),
        largest=_largest(analysis),
        card=_card(analysis),
        sections=_sections(has_advice=bool(advice)),
    )
