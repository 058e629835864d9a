"""Building templates without an SDK: what none of them would send."""

import asyncio
import hashlib
import io
import tarfile

from harness import equal, proves, true

BASE = {"fromImage": "e2bdev/base:any"}


def _archive(*members) -> bytes:
    """A tar of (name, content) and (name, content, kind) with a link's target as content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content, *kind in members:
            info = tarfile.TarInfo(name)
            if kind:
                info.type, info.linkname = kind[0], content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content.encode()))
    return buffer.getvalue()


async def _request(http, name: str) -> tuple[str, str]:
    answer = await http.api("POST", "/v3/templates", {"name": name})
    equal(answer.status, 202, "a build is asked for")
    made = answer.json()
    return made["templateID"], made["buildID"]


async def _upload(http, template: str, archive: bytes) -> str:
    digest = hashlib.sha256(archive).hexdigest()
    link = await http.api("GET", f"/templates/{template}/files/{digest}")
    equal(link.status, 201, "the link")
    answer = await http.fetch("PUT", link.json()["url"], {"Content-Length": str(len(archive))}, archive)
    true(200 <= answer.status < 300, f"an upload without a key: {answer.status} {answer.text}")
    equal((await http.api("GET", f"/templates/{template}/files/{digest}")).json()["present"], True, "it is there")
    return digest


async def _build(http, template: str, build: str, **body) -> dict:
    started = await http.api("POST", f"/v2/templates/{template}/builds/{build}", {**BASE, **body})
    equal(started.status, 202, f"the build starts: {started.text}")
    while True:
        progress = (await http.api("GET", f"/templates/{template}/builds/{build}/status?logsOffset=0")).json()
        if progress["status"] in ("ready", "error"):
            return progress
        await asyncio.sleep(0.05)


@proves("http.builds.hostile", deadline=120)
async def scenario_hostile_archives(http):
    """Names and links that lead out of the context stay inside the sandbox of the build, or fail their step."""
    name = http.mark.replace(".", "-")
    outside = "/tmp/sandbar-conformance-escape"
    escapes = [
        ("above", [("../../../../../../../.." + outside, "x")]),
        ("absolute", [(outside, "x")]),
        ("through", [("link", "/tmp", tarfile.SYMTYPE), ("link/sandbar-conformance-escape", "x")]),
        ("hard", [("passwd", "/etc/passwd", tarfile.LNKTYPE)]),
        ("device", [("disk", "", tarfile.BLKTYPE)]),
        ("cut", None),
    ]
    for what, members in escapes:
        template, build = await _request(http, f"{name}-{what}")
        archive = _archive(*members) if members else _archive(("a", "x" * 100_000))[:200]
        digest = await _upload(http, template, archive)
        step = {"type": "COPY", "args": [".", "/srv/in/", "", ""], "filesHash": digest}
        progress = await _build(http, template, build, steps=[step])
        if progress["status"] == "error":
            equal(progress["reason"]["step"], "1", f"{what}: the step that failed")
    box = await http.create()
    output, _ = await box.run(f"ls {outside} 2>&1; ls /srv")
    true(b"No such file" in output, f"nothing came out: {output}")


@proves("http.builds.refused", deadline=60)
async def scenario_refused(http):
    """Wrong names, hashes, links and steps are refused before anything runs."""
    name = http.mark.replace(".", "-")
    for bad in ("", "a b", "../x", "a/b/c", "x" * 200, "base"):
        answer = await http.api("POST", "/v3/templates", {"name": bad})
        true(answer.status in (400, 409), f"name {bad!r}: {answer.status}")
    template, build = await _request(http, name)
    digest = "0" * 64
    for bad in ("xyz", "..%2F..%2Fetc%2Fpasswd", "A" * 64):
        equal((await http.api("GET", f"/templates/{template}/files/{bad}")).status, 400, f"hash {bad}")
    link = (await http.api("GET", f"/templates/{template}/files/{digest}")).json()["url"]
    other = link.replace(digest, "1" * 64)
    for url in (other, link.split("?")[0], link + "0"):
        equal((await http.fetch("PUT", url, {"Content-Length": "1"}, b"x")).status, 403, "a link for something else")
    huge = await http.fetch("PUT", link, {"Content-Length": str(1 << 50)}, None)
    true(huge.status in (400, 413), f"a petabyte: {huge.status}")
    path = f"/v2/templates/{template}/builds/{build}"
    for steps in (
        [{"type": "COPY", "args": ["../x", "/x", "", ""], "filesHash": digest}],
        [{"type": "COPY", "args": ["a", "/x", "", ""]}],
        [{"type": "RUN", "args": []}],
        [{"type": "USER", "args": ["-rf"]}],
        [{"type": "NONSENSE", "args": ["x"]}],
    ):
        equal((await http.api("POST", path, {**BASE, "steps": steps})).status, 400, str(steps))
    cloud = {"fromImage": "a.example/b:1", "fromImageRegistry": {"type": "aws"}, "steps": []}
    equal((await http.api("POST", path, cloud)).status, 501, "a registry whose passwords only its cloud has")
    equal((await http.api("POST", path, {"fromTemplate": "no-such-template", "steps": []})).status, 404, "its template")
    unknown = await http.api("GET", f"/templates/{template}/builds/00000000-0000-0000-0000-000000000000/status")
    equal(unknown.status, 400, "an unknown build")
    progress = await _build(http, template, build, steps=[{"type": "RUN", "args": ["echo one; echo two; echo three >&2"]}])
    equal(progress["status"], "ready", "the same build, started well")
    equal((await http.api("POST", path, {**BASE, "steps": []})).status, 400, "a build is started once")
    seen = len(progress["logEntries"])
    rest = (await http.api("GET", f"/templates/{template}/builds/{build}/status?logsOffset={seen}")).json()
    equal(rest["logEntries"], [], "nothing beyond the end of the log")
    logs = (await http.api("GET", f"/templates/{template}/builds/{build}/logs?direction=forward")).json()["logs"]
    messages = [entry["message"] for entry in logs]
    equal([message for message in messages if message in ("one", "two")], ["one", "two"], "the log")
    # Standard error is another pipe, so the two have no order.
    true("three" in messages, f"standard error: {messages}")
