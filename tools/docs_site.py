"""Hooks of mkdocs: the reference from the program itself, and links that leave ``docs/``.

On GitHub a page links to files of the repository. The site has only the pages: there such a link becomes the
file's path, and one to a file that does not exist is a warning, which ends a strict build.
"""

from __future__ import annotations

import json
import logging
import posixpath
import re
from pathlib import Path
from typing import Any

import click
import gallery
import typer
from mkdocs.structure.files import File, Files

import xmem
from xmem.cli import json_outputs
from xmem.cli.main import app

_LOG = logging.getLogger("mkdocs.plugins.docs_site")
_ROOT = Path(__file__).parents[1]
_GALLERY = _ROOT / "build" / "gallery"
_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s#]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from the program."""
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    files.append(File.generated(config, "reference/python.md", content=python()))
    files.append(File.generated(config, "reference/json.md", content=json_schemas()))
    for name in json_outputs.names():
        text = json.dumps(json_outputs.output_schema(name), indent=2) + "\n"
        files.append(File.generated(config, f"reference/{_schema_file(name)}", content=text))
    files.append(File.generated(config, "gallery.md", content=pictures()))
    for path in sorted(_GALLERY.glob("*.*")):
        files.append(File.generated(config, f"gallery/{path.name}", abs_src_path=str(path)))
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


def json_schemas() -> str:
    """Return the page of what commands print with ``--json``."""
    parts = [
        "# JSON",
        "What commands print with `--json` follows these [JSON Schemas](https://json-schema.org), which "
        "`xmem-fast schema COMMAND` prints too. Readers must not mind keys that they do not know. "
        "[Releases](../releases.md#what-may-change-and-when) says when a version changes. Sizes are bytes, "
        "times nanoseconds; -1 stands for a number that does not apply.",
    ]
    for name in json_outputs.names():
        schema = json_outputs.output_schema(name)
        rows = [f"| `{key}` | {_words(of)} |" for key, of in schema["properties"].items()]
        parts.append(
            f"## {name}\n\n{schema.get('description', '')} [Schema]({_schema_file(name)}), version "
            f"{json_outputs.version_of(name)}.\n\n| key | what |\n|---|---|\n" + "\n".join(rows)
        )
    return "\n\n".join(parts) + "\n"


def _schema_file(name: str) -> str:
    return f"schemas/{name}-{json_outputs.version_of(name)}.json"


def _words(schema: dict[str, Any]) -> str:
    return str(schema.get("description", "")).replace("|", "\\|")


def pictures() -> str:
    """Return the gallery: pages that `make docs` has made, and pictures of them where there is a browser."""
    parts = ["# Gallery", "Estimates of the demo scripts for an RTX 3060, made on a machine without a GPU."]
    for name, script in gallery.PAGES.items():
        if not (_GALLERY / f"{name}.html").exists():
            _LOG.warning("the gallery has no page of %s; make docs makes it", script)
        parts.append(f"## {script}\n\n[Open the live page](gallery/{name}.html): it works offline.")
        for section, words in gallery.SECTIONS.items():
            if (_GALLERY / f"{name}-{section}.png").exists():
                parts.append(f"![{words}](gallery/{name}-{section}.png)")
    return "\n\n".join(parts) + "\n"


def python() -> str:
    """Return the directives from which mkdocstrings writes everything that ``import xmem`` offers."""
    names = [name for name in xmem.__all__ if name in xmem._HOME and name != "load_ipython_extension"]
    homes = [f"::: xmem.{xmem._HOME[name]}.{name}" for name in names]
    return "# Python\n\nEverything here is an attribute of `xmem`, too.\n\n" + "\n\n".join(homes) + "\n"
