"""``xmem-fast mcp``: a server for coding agents."""

from __future__ import annotations


def mcp() -> None:
    """Serve estimate, what-if, max-batch and advise to a coding agent, over standard input and output (MCP).

    It runs the commands that the agent names, with your rights: what the agent could run anyway. It needs the
    package mcp: pip install 'xmem-fast[mcp]'
    """
    from xmem.integrations.mcp import serve

    serve()
