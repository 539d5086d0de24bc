"""Puts the page together: what is drawn by its script goes in as data, all else as HTML."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from xmem.errors import ConfigError
from xmem.files import write_whole
from xmem.reports.html.drawing import drawing_of
from xmem.reports.html.facts import card_of, facts_of
from xmem.reports.html.module_rows import module_rows_of
from xmem.reports.html.packing import json_for_script
from xmem.reports.html.source_view import source_view_of
from xmem.units import format_bytes

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

    from xmem.pipeline import Analysis

_FOLDER = Path(__file__).parent
_SCRIPTS = ("data.js", "curve.js", "instant.js", "bricks.js", "segments.js", "tree.js", "main.js")
_NEEDED = ("jinja2", "uplot", "tsdownsample")


class Advice(Protocol):
    """A remedy that was replayed."""

    @property
    def remedy(self) -> str:
        """What to do."""

    @property
    def text(self) -> str:
        """The same as the command line has it."""

    @property
    def saved_bytes(self) -> int:
        """By how much it lowers the peak of reserved memory."""

    @property
    def where(self) -> str | None:
        """Module or source line, None where it is the whole job."""

    @property
    def change(self) -> str | None:
        """What to write."""

    @property
    def cost(self) -> str | None:
        """What it costs in exchange."""


def require_packages() -> None:
    """Check, without importing them, that the packages of the extra ``report`` are there.

    Raises:
        ConfigError: Some are missing.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"an HTML report without {', '.join(missing)}",
            "the packages of its extra: pip install 'xmem-fast[report]'",
        )


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
        ConfigError: The packages of the extra ``report`` are missing, or the file cannot be written.
    """
    page = page_of(analysis, advice=advice, show_packages=show_packages)
    try:
        write_whole(path, page.encode())
    except OSError as error:
        raise ConfigError(os.fspath(path), f"a file that can be written ({error.strerror})") from error


def page_of(analysis: Analysis, *, advice: Iterable[Advice] = (), show_packages: bool = False) -> str:
    """The report as the text of an HTML page; the arguments and errors are those of ``write_page``."""
    require_packages()
    holders = analysis.unfolded_holders if show_packages else analysis.holders
    drawing = drawing_of(analysis, holders)
    remedies = list(advice)
    style, library = _uplot()
    scripts = [library, *(_text(f"static/{name}") for name in _SCRIPTS)]
    markup = _markup()
    return _template().render(
        **facts_of(analysis.estimate),
        style=markup(style + _text("static/page.css")),
        scripts=[markup(script) for script in scripts],
        script_hashes=[markup(_hash(script)) for script in scripts],
        data=markup(json_for_script(drawing.data)),
        plot=drawing.plot,
        instant=drawing.at_peak,
        stack=drawing.categories,
        has_active=drawing.data["curve"]["active"] is not None,
        bricks_text=drawing.bricks_text,
        segments_text=drawing.segments_text,
        tree=module_rows_of(analysis),
        source=source_view_of(analysis, show_packages=show_packages),
        card=card_of(analysis.estimate),
        advice=remedies,
        sections=_sections(has_advice=bool(remedies)),
    )


def _sections(*, has_advice: bool) -> list[tuple[str, str]]:
    sections = [
        ("summary", "Summary"),
        ("curve", "Over time"),
        ("bricks", "Blocks"),
        ("segments", "Segments"),
        ("modules", "Modules"),
        ("source", "Source"),
        ("largest", "Largest"),
        ("card", "On the card"),
        ("advice", "Advice"),
        ("basis", "Basis"),
    ]
    return [section for section in sections if has_advice or section[0] != "advice"]


def _markup() -> type[Markup]:
    """What the template takes as it is; every other text is escaped."""
    from markupsafe import Markup

    return Markup


def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
        bytecode_cache=_bytecode_cache(),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["bytes"] = format_bytes
    environment.filters["words"] = lambda label: label.replace("_", " ")
    return environment.get_template("page.html.j2")


def _bytecode_cache() -> jinja2.BytecodeCache | None:
    """Keeps the compiled template beside this module's own byte code, which is a third of the time of a page.

    None where Python keeps none either.
    """
    import jinja2

    folder = Path(importlib.util.cache_from_source(__file__)).parent
    if sys.dont_write_bytecode or not os.access(folder, os.W_OK):
        return None
    return jinja2.FileSystemBytecodeCache(str(folder))


def _uplot() -> tuple[str, str]:
    """uPlot's style and script, as the package ``uplot-python`` brings them; it is not imported."""
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
    """The only scripts that the page lets run are those of these hashes."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
