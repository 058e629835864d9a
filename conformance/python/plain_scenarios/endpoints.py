"""Every endpoint and RPC of the protocol, asked once: what the table says of it is what the server does."""

import json
import struct
from pathlib import Path

from harness import equal, proves, true

GROUPS = json.loads((Path(__file__).resolve().parents[2] / "endpoints.json").read_text())
INTERPRETER_PORT = 49999
# Names a process that there is none of; calls about other things pass over it.
MESSAGE = b'{"process":{"pid":999999}}'
ENVELOPE = struct.pack(">BI", 0, len(MESSAGE)) + MESSAGE


async def ask(http, box, kind: str, call: str):
    """The answer to a call about things that do not exist, with an empty body: nothing changes by it."""
    for place in ("{id}", "{hash}", "{build}", "{alias}", "{anything}"):
        call = call.replace(place, "inosuchthing")
    if kind == "rpc":
        streams = call.startswith("stream ")
        headers = {"Content-Type": "application/connect+json" if streams else "application/json"}
        return await box.envd("POST", "/" + call.removeprefix("stream "), headers, ENVELOPE if streams else MESSAGE)
    method, path = call.split(" ")
    body = None if method == "GET" else {}
    if kind == "control":
        return await http.api(method, path, body)
    headers = box.headers(INTERPRETER_PORT) if kind == "interpreter" else box.headers()
    return await http.fetch(method, http.sandbox_url + path, headers, body)


def is_served(kind: str, answer) -> bool:
    """Whether the server implements the call, whatever its result."""
    if kind == "rpc":
        return "unimplemented" not in answer.text and (answer.status != 404 or "not_found" in answer.text)
    if kind == "control":
        return answer.status not in (405, 501) and not (answer.status == 404 and "message\":\"path '" in answer.text)
    # An error about a missing object names it; one about an unknown path names the path or nothing.
    return answer.status != 405 and not (answer.status == 404 and "inosuchthing" not in answer.text)


@proves("http.endpoints", deadline=120)
async def scenario_endpoints(http):
    box = await http.create()
    for group in GROUPS:
        kind = group["kind"]
        for call, *standing in group["rows"]:
            answer = await ask(http, box, kind, call)
            what = f"{call}: {answer.status} {answer.text[:200]}"
            equal(is_served(kind, answer), not standing, f"served: {what}")
            if standing:
                equal(answer.status, 501 if kind == "control" else 404, what)
                true(answer.json()["message"], what)
    for kind, call in (
        ("control", "GET /sandboxes/{id}/nothing"),
        ("daemon", "GET /nothing"),
        ("rpc", "process.Process/Nothing"),
        ("rpc", "stream process.Process/Nothing"),
        ("interpreter", "GET /nothing"),
    ):
        answer = await ask(http, box, kind, call)
        true(not is_served(kind, answer), f"an unknown path is distinguished: {call}: {answer.status} {answer.text[:200]}")
