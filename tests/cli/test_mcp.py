"""``xmem-fast mcp``: a client of the official package talks to it as an agent does."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

mcp = pytest.importorskip("mcp")
pytest.importorskip("torch")

SCRIPT = """
import argparse, sys, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
size = parser.parse_args().batch
print("printed by the script"), sys.stdin.read()
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.zeros(size * 1024, 256, device="cuda")).sum().backward()
    optimizer.step()
"""


def talk(ask: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    from mcp.client.stdio import stdio_client

    async def session() -> None:
        server = mcp.StdioServerParameters(
            command=sys.executable, args=["-m", "xmem.cli.main", "mcp"], env=dict(os.environ)
        )
        async with stdio_client(server) as streams, mcp.ClientSession(*streams) as client:
            await client.initialize()
            await ask(client)

    asyncio.run(session())


@pytest.mark.slow
def test_an_agent_estimates_and_asks_on(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    async def call(client: Any, tool: str, **arguments: Any) -> Any:
        result = await client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        return result.structured_content

    async def ask(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"estimate", "what_if", "max_batch", "advise"}
        assert all(tool.output_schema for tool in tools.values())
        need = await call(client, "estimate", command=[sys.executable, str(script)], gpu="rtx-3060")
        assert need["fits"] is True
        assert need["bytes_by_category"]["parameter"] >= 4 * (256 * 1024 + 1024 + 1024 * 8 + 8)
        assert any("train.py" in line for line in need["bytes_by_line"])
        less = await call(client, "what_if", trace=need["trace"], changes=["optimizer=sgd"])
        assert less["peak_allocated_bytes"] < need["peak_allocated_bytes"]
        remedies = (await call(client, "advise", trace=need["trace"]))["result"]
        assert [each["saved_bytes"] for each in remedies] == sorted(
            (each["saved_bytes"] for each in remedies), reverse=True
        )
        command = [sys.executable, str(script), "--batch", "{batch}"]
        batch = await call(client, "max_batch", command=command, capacity="1GiB", effective_batch=48)
        assert batch["device_peak_bytes"] <= batch["capacity_bytes"] == 1 << 30
        assert batch["batch_size"] * batch["accumulation"] == 48
        refused = await client.call_tool("estimate", {"command": ["python", "none.py"], "gpu": "no-such"})
        assert refused.is_error
        assert "no-such" in refused.content[0].text

    talk(ask)
