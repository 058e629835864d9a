"""Proves `sandbar mcp` with the official MCP inspector and the official TypeScript client, over both transports, and with the
official Python client over HTTP.

    python3 conformance/mcp.py --server target/release/sandbar

Needs node and npm. Everything else is installed into .cache/ (SANDBAR_CACHE).
"""

import argparse
import contextlib
import json
import os
import re
import select
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import environments  # noqa: E402
from server import OwnServer, ServerError, Target  # noqa: E402

TOOLS = ["read_file", "write_file", "edit_file", "bash", "grep", "glob", "take_screenshot"]
START_DEADLINE = 30.0
CALL_DEADLINE = 120.0


class Failed(Exception):
    """The server violates the protocol or our documentation."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, required=True, help="the sandbar executable, for the server and for `mcp`")
    program = parser.parse_args().server.resolve()
    try:
        packages, python = environments.prepare_mcp(), environments.prepare_mcp_python()
        with contextlib.ExitStack() as stack:
            target = stack.enter_context(OwnServer(program, environments.CACHE / "servers"))
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            stdio = _launcher(scratch, program, target)
            url, token = stack.enter_context(_http(stdio))
            for name, where in {"stdio": [str(stdio)], "http": [url, "--header", f"Authorization: Bearer {token}"]}.items():
                started = time.monotonic()
                _inspect(packages, where)
                client = environments.HERE / "js" / "mcp.mjs"
                where = [str(stdio)] if name == "stdio" else [url, token]
                _run(["node", str(client), "--sdk", str(packages), *where])
                if name == "http":
                    _run([str(python), str(environments.HERE / "python" / "mcp_client.py"), url, token])
                print(f"mcp over {name}: the inspector and the client agree, {time.monotonic() - started:.0f} s", flush=True)
    except (environments.SetupError, ServerError, Failed) as error:
        print(f"mcp: {error}", file=sys.stderr)
        return 1
    return 0


def _launcher(scratch: Path, program: Path, target: Target) -> Path:
    """A script that runs `sandbar mcp`, for a client that passes no environment on."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in target.environment().items()]
    file = scratch / "sandbar-mcp"
    file.write_text("\n".join(["#!/bin/sh", "unset SANDBAR_SANDBOX", *lines, f'exec {shlex.quote(str(program))} mcp "$@"', ""]))
    file.chmod(0o700)
    return file


@contextlib.contextmanager
def _http(launcher: Path):
    """Starts the HTTP server and returns its URL and token."""
    command = [str(launcher), "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            output, deadline = b"", time.monotonic() + START_DEADLINE
            while not (found := re.search(rb"(http://\S+)\s.*Bearer (\S+)\s", output, re.S)):
                if not select.select([process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                    raise Failed("`sandbar mcp --http` did not say where it is")
                if not (piece := os.read(process.stdout.fileno(), 4096)):
                    raise Failed("`sandbar mcp --http` ended")
                output += piece
            yield found[1].decode(), found[2].decode()
        finally:
            process.terminate()
            process.wait(START_DEADLINE)


def _inspect(packages: Path, where: list[str]) -> None:
    """Runs the inspector, one request per run."""

    def ask(*arguments: str) -> dict:
        inspector = packages / "node_modules" / "@modelcontextprotocol" / "inspector-cli" / "build"
        # The inspector reads its package.json from the current directory.
        return json.loads(_run(["node", "index.js", *where, *arguments], inspector))

    listed = ask("--method", "tools/list")["tools"]
    if [tool["name"] for tool in listed] != TOOLS:
        raise Failed(f"other tools than expected: {listed}")
    if not all(tool["outputSchema"] and "readOnlyHint" in tool["annotations"] for tool in listed):
        raise Failed("a tool has no output schema, or no annotations")
    result = ask("--method", "tools/call", "--tool-name", "bash", "--tool-arg", "command=echo seen by the inspector")
    texts = [block["text"] for block in result["content"] if block["type"] == "text"]
    if texts[-1] != "seen by the inspector\n[exit 0]" or result["structuredContent"]["exit_code"] != 0:
        raise Failed(f"bash returned {result}")
    templates = ask("--method", "resources/templates/list")["resourceTemplates"]
    if not templates[0]["uriTemplate"].startswith("sandbox://"):
        raise Failed(f"other resource templates than expected: {templates}")


def _run(command: list[str], directory: Path | None = None) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("E2B_", "SANDBAR_"))} | {"NO_PROXY": "*"}
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CALL_DEADLINE,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"no end within {CALL_DEADLINE:.0f} s: {' '.join(command[1:3])}") from error
    if done.returncode != 0:
        raise Failed(f"{' '.join(command[1:])}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
