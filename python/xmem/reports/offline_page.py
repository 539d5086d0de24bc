"""Common parts of the report pages: each is one self-contained file, rendered by jinja2."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from xmem.text.units import format_bytes, format_change
from xmem.text.words import spaced

if TYPE_CHECKING:
    import jinja2

_STYLE = Path(__file__).with_suffix(".css")


def environment(templates: Path) -> jinja2.Environment:
    """Return the jinja2 environment for the templates of a folder; text not marked as safe is escaped.

    It has the filters ``bytes``, ``change`` and ``words``.
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
    """Return the style of all pages followed by the page's own, as text for a ``<style>`` element."""
    return _STYLE.read_text(encoding="utf-8") + own.read_text(encoding="utf-8")


def _bytecode_cache() -> jinja2.BytecodeCache | None:
    """Cache compiled templates beside this module's byte code, which saves a third of the time of a page.

    Return None where Python caches no byte code either.
    """
    import jinja2

    folder = Path(importlib.util.cache_from_source(__file__)).parent
    if sys.dont_write_bytecode or not os.access(folder, os.W_OK):
        return None
    return jinja2.FileSystemBytecodeCache(str(folder))
