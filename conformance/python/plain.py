"""The wire protocol without any SDK: what the SDKs never send, or never show. Standard library only."""

import asyncio
import base64
import json
import os
import struct
import uuid

import wire

RUN_ID = uuid.uuid4().hex[:10]


class Plain:
    def __init__(self):
        self.flavour = "http"
        self.url = os.environ["SANDBAR_CONFORMANCE_URL"].rstrip("/")
        self.sandbox_url = os.environ["SANDBAR_CONFORMANCE_SANDBOX_URL"].rstrip("/")
        self.key = os.environ["E2B_API_KEY"]

    def has(self, _feature: str) -> bool:
        return True

    def scope(self, name: str) -> "Scope":
        return Scope(self, name)


class Box:
    def __init__(self, scope: "Scope", made: dict):
        self.id, self.token, self.made = made["sandboxID"], made.get("envdAccessToken"), made
        self._scope = scope

    def headers(self, port: int = 49983, token: str | None = None) -> dict[str, str]:
        routing = {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": str(port)}
        return routing | ({"X-Access-Token": token or self.token} if port == 49983 else {})

    async def envd(self, method: str, path: str, headers=None, body=None, **options) -> wire.Answer:
        """A request to the sandbox's daemon with routing headers and token; `headers` override them."""
        merged = {k: v for k, v in {**self.headers(), **(headers or {})}.items() if v is not None}
        return await self._scope.fetch(method, self._scope.sandbox_url + path, merged, body, **options)

    async def unary(self, method: str, message: dict, headers=None) -> wire.Answer:
        return await self.envd("POST", f"/{method}", headers, message)

    async def stream(self, method: str, message: dict, headers=None) -> list[tuple[int, dict]]:
        """A server stream to its end: pairs of flag and message."""
        payload = json.dumps(message).encode()
        body = struct.pack(">BI", 0, len(payload)) + payload
        kind = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}
        answer = await self.envd("POST", f"/{method}", {**kind, **(headers or {})}, body)
        if answer.status != 200 or answer.headers.get("content-type") != "application/connect+json":
            raise AssertionError(f"stream answered {answer.status} {answer.headers.get('content-type')} {answer.text[:200]}")
        return split_envelopes(answer.body)

    async def run(self, command: str, headers=None) -> tuple[bytes, dict]:
        """Standard output and the end event of a shell command."""
        process = {"cmd": "/bin/bash", "args": ["-l", "-c", command]}
        events = await self.stream("process.Process/Start", {"process": process, "stdin": False}, headers)
        output, end = b"", {}
        for flag, message in events:
            event = message.get("event", {})
            output += base64.b64decode(event.get("data", {}).get("stdout", ""))
            end = event.get("end", end)
        return output, end


def split_envelopes(body: bytes) -> list[tuple[int, dict]]:
    messages, at = [], 0
    while at < len(body):
        flag, length = struct.unpack_from(">BI", body, at)
        messages.append((flag, json.loads(body[at + 5 : at + 5 + length])))
        at += 5 + length
    return messages


class Scope:
    """What one scenario uses. Sandboxes made through it are killed when the scenario ends."""

    def __init__(self, sdk: Plain, name: str):
        self.sdk, self.url, self.sandbox_url, self.key = sdk, sdk.url, sdk.sandbox_url, sdk.key
        self.mark = f"{RUN_ID}-{name}"
        self._made: list[str] = []

    async def close(self):
        for sandbox_id in self._made:
            try:
                async with asyncio.timeout(10):
                    await self.api("DELETE", f"/sandboxes/{sandbox_id}")
            except Exception:
                pass  # The server ends with the run.

    async def fetch(self, method, url, headers=None, body=None, **options) -> wire.Answer:
        return await asyncio.to_thread(wire.request, method, url, headers, body, **options)

    async def api(self, method: str, path: str, body=None, headers=None) -> wire.Answer:
        return await self.fetch(method, self.url + path, {"X-API-Key": self.key, **(headers or {})}, body)

    async def create(self, path: str = "/v2/sandboxes", headers=None, **body) -> Box:
        body = {"templateID": "base", "metadata": {"mark": self.mark}, **body}
        answer = await self.api("POST", path, body, headers)
        if answer.status != 201:
            raise AssertionError(f"create answered {answer.status}: {answer.text[:300]}")
        box = Box(self, answer.json())
        self._made.append(box.id)
        return box
