"""Hooks of mkdocs: the reference from the program itself, and links that leave ``docs/``.

On GitHub a page links to files of the repository. The site has only the pages: there such a link becomes the
file's path, and one to a file that does not exist is a warning, which ends a strict build.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

import click
import typer
from mkdocs.structure.files import File, Files

import xmem
from xmem.cli.main import app

_LOG = logging.getLogger("mkdocs.plugins.docs_site")
_ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s#]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from the program."""
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    files.append(File.generated(config, "reference/python.md", content=python()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Name the files of the repository that a page links to."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def named(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        if target.startswith("docs/"):
            return link[0]
        if not (_ROOT / target).exists():
            _LOG.warning("%s links to %s, which does not exist", page.file.src_uri, target)
        words = link[1].strip("`")
        return f"`{target}`" if words in target else f"{link[1]} (`{target}`)"

    return _LINK.sub(named, markdown)


def commands() -> str:
    """Return the help of every command, as the program prints it."""
    group = typer.main.get_command(app)
    assert hasattr(group, "commands")
    parts = ["# Commands", "What `xmem-fast COMMAND --help` prints."]
    for name, command in sorted(group.commands.items()):
        with click.Context(command, info_name=f"xmem-fast {name}", terminal_width=100) as context:
            parts.append(f"## {name}\n\n```text\n{command.get_help(context)}\n```")
    return "\n\n".join(parts) + "\n"


def python() -> str:
    """Return the directives from which mkdocstrings writes everything that ``import xmem`` offers."""
    names = [name for name in xmem.__all__ if name != "load_ipython_extension"]
    homes = [f"::: xmem.{xmem._HOME[name]}.{name}" for name in names]
    return "# Python\n\nEverything here is an attribute of `xmem`, too.\n\n" + "\n\n".join(homes) + "\n"
