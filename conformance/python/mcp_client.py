"""The official Python MCP client against `sandbar mcp --http`: python mcp_client.py URL TOKEN.

A session by handshake, a call, and the end of the session: the client must have nothing to warn of.
"""

import logging
import sys

import anyio
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client


class Warnings(logging.Handler):
    """Keeps what the client logs as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(f"{record.name}: {record.getMessage()}")


async def main(url: str, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    async with create_mcp_http_client(headers=headers) as http, streamable_http_client(url, http_client=http) as streams:
        async with ClientSession(*streams[:2]) as session:
            await session.initialize()
            listed = await session.list_tools()
            assert len(listed.tools) == 7, listed
            called = await session.call_tool("bash", {"command": "echo seen by python"})
            assert called.content[-1].text == "seen by python\n[exit 0]", called


if __name__ == "__main__":
    warnings = Warnings()
    logging.getLogger().addHandler(warnings)
    anyio.run(main, *sys.argv[1:3])
    if warnings.messages:
        sys.exit("the client warned:\n" + "\n".join(warnings.messages))
