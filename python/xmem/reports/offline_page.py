"""What the pages of reports have in common: one file each that needs nothing else, made by jinja2."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from xmem.units import format_bytes, format_change
from xmem.words import spaced

if TYPE_CHECKING:
    import jinja2

_STYLE = Path(__file__).with_suffix(".css")


def environment(templates: Path) -> jinja2.Environment:
    """Where the templates of a folder are rendered; every text that is not marked as safe is escaped.

    They have the filters ``bytes``, ``change`` and ``words``.
    """
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        bytecode_cache=_bytecode_cache(),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters |= {"bytes": format_bytes, "change": format_change, "words": spaced}
    return made


def style(own: Path) -> str:
    """The style of all pages, and after it the page's own, as text for a ``<style>`` element."""
    return _STYLE.read_text(encoding="utf-8") + own.read_text(encoding="utf-8")


def _bytecode_cache() -> jinja2.BytecodeCache | None:
    """Keeps compiled templates beside this module's own byte code, which is a third of the time of a page.

    None where Python keeps none either.
    """
    import jinja2

    folder = Path(importlib.util.cache_from_source(__file__)).parent
    if sys.dont_write_bytecode or not os.access(folder, os.W_OK):
        return None
    return jinja2.FileSystemBytecodeCache(str(folder))
