"""The sandbox's daemon and the edge in front of it, without an SDK."""

import asyncio
import base64
import gzip
import hashlib
import json
import socket
import time
import urllib.parse

import plain
from harness import equal, proves, true, until
from plain_scenarios.control import is_error

OCTETS = {"Content-Type": "application/octet-stream"}


@proves("http.envd.health", "http.envd.token", quick=True)
async def scenario_token(http):
    box = await http.create()
    health = await box.envd("GET", "/health", {"X-Access-Token": None})
    equal((health.status, health.headers.get("cache-control")), (204, "no-store"), "/health needs no token")
    for token in (None, "wrong"):
        answer = await box.unary("process.Process/List", {}, {"X-Access-Token": token})
        equal(answer.status, 401, f"list with token {token}")
    is_error(await box.envd("GET", "/files?path=x", {"X-Access-Token": None}), 401, "a file without token or signature")
    is_error(await box.envd("GET", "/files?path=x", {"X-Access-Token": "wrong"}), 401, "a file with a wrong token")
    other = await http.create()
    answer = await box.unary("process.Process/List", {}, {"X-Access-Token": other.token})
    equal(answer.status, 401, "another sandbox's token")


@proves("http.edge.routing", quick=True)
async def scenario_routing(http):
    box = await http.create()
    for path in ("/init", "/freeze", "/unfreeze", "/sandbar/lease"):
        answer = await box.envd("POST", path, body={})
        equal(answer.status, 404, f"control route {path} from outside")
    half = await http.fetch("GET", http.sandbox_url + "/health", {"E2b-Sandbox-Id": box.id})
    equal((half.status, half.text.strip()), (400, "missing header"), "one routing header of two")
    bad = await http.fetch("GET", http.sandbox_url + "/", {"E2b-Sandbox-Id": box.id, "E2b-Sandbox-Port": "99999"})
    equal(bad.status, 400, "a port out of range")
    gone = await http.fetch("GET", http.sandbox_url + "/", {"E2b-Sandbox-Id": "inosuch", "E2b-Sandbox-Port": "80"})
    expected = {"sandboxId": "inosuch", "message": "The sandbox was not found", "code": 502}
    equal((gone.status, gone.json()), (502, expected), "an unknown sandbox")
    browser = {"User-Agent": "Mozilla/5.0", "Accept": "text/html", "Sec-Fetch-Mode": "navigate"}
    page = await http.fetch(
        "GET", http.sandbox_url + "/", {"E2b-Sandbox-Id": "inosuch", "E2b-Sandbox-Port": "80", **browser}
    )
    true("text/html" in page.headers.get("content-type", ""), "a browser is answered in HTML")


@proves("http.process.events", quick=True)
async def scenario_event_order(http):
    box = await http.create()
    process = {"cmd": "/bin/bash", "args": ["-l", "-c", "echo hi; exit 4"]}
    events = await box.stream("process.Process/Start", {"process": process, "stdin": False})
    kinds = [next(iter(message.get("event", {"done": 0}))) for _, message in events]
    equal(kinds, ["start", "data", "end", "done"], "order of events")
    equal(events[-1], (2, {}), "end of stream")
    equal(
        events[2][1]["event"]["end"],
        {"exitCode": 4, "exited": True, "status": "exit status 4", "error": "exit status 4"},
        "end event",
    )
    none = await box.stream("process.Process/Connect", {"process": {"pid": 99999}})
    equal((len(none), none[0][0], none[0][1]["error"]["code"]), (1, 2, "not_found"), "error inside the stream")
    start = await box.stream("process.Process/Start", {"process": {"cmd": "/no/such/program"}})
    equal(start[-1][1]["error"]["code"], "invalid_argument", "a program that cannot be started")


@proves("http.process.keepalive")
async def scenario_keepalive(http):
    box = await http.create()
    process = {"cmd": "/bin/bash", "args": ["-l", "-c", "sleep 2.6"]}
    started = time.monotonic()
    events = await box.stream("process.Process/Start", {"process": process}, {"Keepalive-Ping-Interval": "1"})
    took = time.monotonic() - started
    beats = [message for _, message in events if "keepalive" in message.get("event", {})]
    true(2 <= len(beats) <= took, f"{len(beats)} keepalives in {took:.1f} s of silence at 1 s")


@proves("http.process.proto")
async def scenario_binary_codec(http):
    """The daemon also speaks binary protobuf, which other clients use. List of nothing is an empty message."""
    box = await http.create()
    answer = await box.envd("POST", "/process.Process/List", {"Content-Type": "application/proto"}, b"")
    equal((answer.status, answer.headers.get("content-type"), answer.body), (200, "application/proto", b""), "List")


@proves("http.files.range", "http.files.gzip")
async def scenario_downloads(http):
    box = await http.create()
    content = bytes(range(256)) * 40
    equal((await box.envd("POST", "/files?path=r.bin", OCTETS, content)).status, 200, "upload")
    part = await box.envd("GET", "/files?path=r.bin", {"Range": "bytes=100-199"})
    equal((part.status, part.body), (206, content[100:200]), "a range")
    equal(part.headers.get("content-range"), f"bytes 100-199/{len(content)}", "Content-Range")
    tail = await box.envd("GET", "/files?path=r.bin", {"Range": "bytes=-16"})
    equal((tail.status, tail.body), (206, content[-16:]), "the last bytes")
    packed = await box.envd("GET", "/files?path=r.bin", {"Accept-Encoding": "gzip"})
    equal(packed.headers.get("content-encoding"), "gzip", "encoding when gzip is asked for")
    equal(gzip.decompress(packed.body), content, "unpacked")
    plain_answer = await box.envd("GET", "/files?path=r.bin")
    equal(plain_answer.headers.get("content-disposition", "").split(";")[0], "inline", "Content-Disposition")
    unzipped = await box.envd("POST", "/files?path=z.bin", {**OCTETS, "Content-Encoding": "gzip"}, gzip.compress(content))
    equal(unzipped.status, 200, "an upload packed with gzip")
    equal((await box.envd("GET", "/files?path=z.bin")).body, content, "stored unpacked")


@proves("http.files.refused")
async def scenario_refused_files(http):
    box = await http.create()
    is_error(await box.envd("GET", "/files?path=absent"), 404, "an absent file")
    is_error(await box.envd("GET", "/files?path=/tmp"), 400, "a directory")
    is_error(await box.envd("GET", "/files?path=/dev/zero"), 400, "a device, which has no end")
    is_error(await box.envd("POST", "/files", OCTETS, b"x"), 400, "octets without a path")
    is_error(await box.envd("POST", "/files?path=x", {"Content-Type": "text/plain"}, b"x"), 400, "another type")
    packed = {**OCTETS, "Content-Encoding": "br"}
    is_error(await box.envd("POST", "/files?path=x", packed, b"x"), 400, "an unknown encoding")
    is_error(await box.envd("GET", "/files?path=x&username=nobodyhere"), 401, "an unknown user")
    # A client that is still sending must see why it is refused.
    large = bytes(32 * 1024 * 1024)
    for path, headers, status in (
        ("/files?path=x", {"E2b-Sandbox-Id": "inosuch"}, 502),
        ("/files?path=x", {"X-Access-Token": "wrong"}, 401),
        ("/files?path=/tmp", {}, 400),
    ):
        is_error(await box.envd("POST", path, {**OCTETS, **headers}, large), status, f"a large upload to {path} with {headers}")


@proves("http.files.compose")
async def scenario_compose(http):
    box = await http.create()
    for name, content in (("p1", b"one "), ("p2", b"two")):
        await box.envd("POST", f"/files?path={name}", OCTETS, content)
    paths = ["/home/user/p1", "/home/user/p2"]
    answer = await box.envd("POST", "/files/compose", body={"source_paths": paths, "destination": "/home/user/whole"})
    equal(answer.status, 200, f"compose: {answer.text[:200]}")
    equal((await box.envd("GET", "/files?path=whole")).body, b"one two", "joined")
    equal((await box.envd("GET", "/files?path=p1")).status, 404, "sources are gone")


@proves("http.envd.metrics", "http.envd.envs")
async def scenario_metrics_and_variables(http):
    box = await http.create(envVars={"CREATED": "yes"})
    metrics = (await box.envd("GET", "/metrics")).json()
    needed = "ts cpu_count cpu_used_pct mem_total mem_used disk_used disk_total".split()
    equal([field for field in needed if field not in metrics], [], f"missing in {metrics}")
    equal((await box.envd("GET", "/envs")).json().get("CREATED"), "yes", "create-time variable in /envs")


@proves("http.signature")
async def scenario_signature(http):
    """The signature's recipe, computed here."""
    box = await http.create()
    await box.envd("POST", "/files?path=signed.txt", OCTETS, b"signed")

    def url(path, operation, user="", expires=None):
        parts = [path, operation, user, box.token] + ([str(expires)] if expires else [])
        digest = base64.b64encode(hashlib.sha256(":".join(parts).encode()).digest()).decode().rstrip("=")
        query = {"path": path, "signature": "v1_" + digest}
        query |= {"username": user} if user else {}
        query |= {"signature_expiration": expires} if expires else {}
        return f"{http.sandbox_url}/files?{urllib.parse.urlencode(query)}"

    soon, past = int(time.time()) + 60, int(time.time()) - 5
    equal((await http.fetch("GET", url("signed.txt", "read"))).body, b"signed", "without expiry")
    equal((await http.fetch("GET", url("signed.txt", "read", expires=soon))).body, b"signed", "with expiry")
    late = await http.fetch("GET", url("signed.txt", "read", expires=past))
    equal((late.status, late.json()), (401, {"code": 401, "message": "signature is already expired"}), "expired")
    wrote = await http.fetch("POST", url("up.txt", "write", "root"), OCTETS, b"up")
    equal(wrote.status, 200, f"upload as root: {wrote.text[:200]}")
    equal((await http.fetch("GET", url("up.txt", "read", "root"))).body, b"up", "download as root")


STREAMING_SERVER = """
import http.server, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for n in range(2):
            self.wfile.write(f"data: {n}\\n\\n".encode())
            self.wfile.flush()
            time.sleep(60)
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""

UPGRADE_SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", 8000))
while True:
    client, _ = listener.accept()
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        got = client.recv(4096)
        if not got:
            break
        head += got
    if b"upgrade" not in head.lower():
        client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
        client.close()
        continue
    client.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n")
    while True:
        got = client.recv(4096)
        if not got:
            break
        client.sendall(got.upper())
    client.close()
"""


async def _serve(http, box, program: str):
    await box.envd("POST", "/files?path=server.py", OCTETS, program.encode())
    await box.run("nohup python3 server.py >/dev/null 2>&1 &")

    async def listens():
        output, _ = await box.run("(exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null && echo up")
        return output == b"up\n"

    await until(listens, 15, "the server in the sandbox listens")


@proves("http.edge.sse")
async def scenario_streamed_answer(http):
    """The first part of a streamed answer arrives while the service still holds back the second."""
    box = await http.create()
    await _serve(http, box, STREAMING_SERVER)

    def read() -> bytes:
        parts = urllib.parse.urlsplit(http.sandbox_url)
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
            connection.sendall(_head("GET", box, 8000))
            seen = b""
            while b"data: 0" not in seen:
                got = connection.recv(4096)
                if not got:
                    break
                seen += got
            return seen

    seen = await asyncio.to_thread(read)
    true(b"data: 0" in seen and b"data: 1" not in seen, f"the first event alone: {seen[-80:]!r}")


@proves("http.edge.upgrade")
async def scenario_upgrade(http):
    """An upgraded connection carries bytes both ways."""
    box = await http.create()
    await _serve(http, box, UPGRADE_SERVER)

    def talk() -> tuple[bytes, bytes]:
        parts = urllib.parse.urlsplit(http.sandbox_url)
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
            upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "eA==", "Sec-WebSocket-Version": "13"}
            connection.sendall(_head("GET", box, 8000, upgrade))
            head = b""
            while b"\r\n\r\n" not in head:
                got = connection.recv(4096)
                if not got:
                    return head, b""
                head += got
            head, _, seen = head.partition(b"\r\n\r\n")
            for text in (b"first ", b"second"):
                connection.sendall(text)
                while not seen.endswith(text.upper()):
                    seen += connection.recv(4096)
            return head, seen

    head, seen = await asyncio.to_thread(talk)
    true(head.startswith(b"HTTP/1.1 101"), f"answer to the upgrade: {head[:80]!r}")
    equal(seen, b"FIRST SECOND", "bytes both ways")


def _head(method: str, box: plain.Box, port: int, more: dict | None = None) -> bytes:
    lines = [f"{method} / HTTP/1.1", "Host: localhost"]
    lines += [f"{key}: {value}" for key, value in {**box.headers(port), **(more or {})}.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@proves("http.rpc.errors")
async def scenario_unary_errors(http):
    box = await http.create()
    for method, message, status, code in (
        ("filesystem.Filesystem/Stat", {"path": "/absent"}, 404, "not_found"),
        ("filesystem.Filesystem/MakeDir", {"path": "/tmp"}, 409, "already_exists"),
        ("filesystem.Filesystem/ListDir", {"path": "/etc/passwd"}, 400, "invalid_argument"),
        ("filesystem.Filesystem/GetWatcherEvents", {"watcherId": "none"}, 404, "not_found"),
        ("process.Process/SendSignal", {"process": {"pid": 99999}, "signal": "SIGNAL_SIGKILL"}, 404, "not_found"),
        ("process.Process/SendInput", {"process": {"pid": 99999}, "input": {"stdin": "eA=="}}, 404, "not_found"),
    ):
        answer = await box.unary(method, message)
        equal((answer.status, answer.json().get("code")), (status, code), f"{method} {json.dumps(message)}")
    answer = await box.unary("filesystem.Filesystem/Stat", {"path": "~"}, {"Authorization": "Basic bm9zdWNodXNlcjo="})
    equal((answer.status, answer.json().get("code")), (401, "unauthenticated"), "an unknown user")
