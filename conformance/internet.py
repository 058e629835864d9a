"""A test network for one run: a network namespace linked to the host, in which one host serves several names.

The machine has public-looking addresses, to which the host has a route, and serves HTTP on port 80 and TLS on port 443, whatever name is asked for; a name
server on the host's loopback knows the names under `.test`. Gone when the run ends, however it ends: the
namespace is held by a child that dies with its parent.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

# From a range for documentation. The system tests of the program use other ones: both may run at once.
PUBLIC, OTHER = "203.0.113.130", "203.0.113.131"
# Both ends of the link. Sandboxes reach no neighbour of the host, so the others are behind the far end.
HOST_SIDE, ROUTER = "10.213.9.1", "10.213.9.2"
NAMES = {"allowed.test": PUBLIC, "sub.allowed.test": PUBLIC, "denied.test": PUBLIC, "other.test": OTHER}

# Says which name it was asked for, over TLS which one the handshake named, and what headers came. The key is for this run only.
WEB = r"""
import http.server, json, ssl, subprocess, sys, tempfile, threading
class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        shown = {"host": self.headers["Host"], "sni": getattr(self.connection, "asked_for", None), "client": self.client_address[0],
                 "headers": {name.lower(): value for name, value in self.headers.items()}}
        body = json.dumps(shown).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        pass
plain, secured = Server(("0.0.0.0", 80), Page), Server(("0.0.0.0", 443), Page)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
def named(connection, name, _):
    connection.asked_for = name
context.sni_callback = named
secured.socket = context.wrap_socket(secured.socket, server_side=True, do_handshake_on_connect=False)
threading.Thread(target=plain.serve_forever, daemon=True).start()
print("ready", flush=True)
secured.serve_forever()
"""


# A SOCKS5 proxy for one user. Whatever name it is asked for is itself: so it shows that names are its to resolve.
PROXY = r"""
import socket, socketserver, threading
class Handler(socketserver.StreamRequestHandler):
    def take(self, count):
        data = self.rfile.read(count)
        if len(data) < count:
            raise ConnectionError
        return data
    def handle(self):
        try:
            self.serve()
        except OSError:
            pass
    def serve(self):
        self.take(self.take(2)[1])
        self.wfile.write(b"\x05\x02")
        self.take(1)
        user = self.take(self.take(1)[0])
        right = (user, self.take(self.take(1)[0])) == (b"me", b"hunter2")
        self.wfile.write(b"\x01" + (b"\x00" if right else b"\x01"))
        if not right:
            return
        kind = self.take(4)[3]
        self.take(self.take(1)[0] if kind == 3 else 4)
        port = int.from_bytes(self.take(2), "big")
        with socket.create_connection(("127.0.0.1", port)) as far:
            self.wfile.write(b"\x05\x00\x00\x01" + bytes(6))
            threading.Thread(target=self.pump, args=(far, self.connection), daemon=True).start()
            self.pump(self.connection, far)
    def pump(self, source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
server = Server(("0.0.0.0", 1080), Handler)
print("ready", flush=True)
server.serve_forever()
"""


class Internet:
    """A context manager; `environment` says to scenarios where it is, `options` to the server under test."""

    def __init__(self, scratch: Path):
        self._scratch = scratch
        self._children: list[subprocess.Popen] = []

    def __enter__(self) -> "Internet":
        self._scratch.mkdir(parents=True, exist_ok=True)
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        holder = self._child(["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"])
        self._link = f"cf{os.getpid()}"
        inside = ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
        for command in (
            ["ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid)],
            ["ip", "address", "add", f"{HOST_SIDE}/30", "dev", self._link],
            ["ip", "link", "set", self._link, "up"],
            [*inside, "ip", "address", "add", f"{ROUTER}/30", "dev", "eth0"],
            *([*inside, "ip", "address", "add", f"{address}/32", "dev", "eth0"] for address in (PUBLIC, OTHER)),
            [*inside, "ip", "link", "set", "eth0", "up"],
            [*inside, "ip", "link", "set", "lo", "up"],
            *(["ip", "route", "add", f"{address}/32", "via", ROUTER] for address in (PUBLIC, OTHER)),
        ):
            subprocess.run(command, check=True, capture_output=True, text=True)
        self.authority = self._scratch / "internet-ca.pem"
        certificate, key = self._scratch / "internet.pem", self._scratch / "internet.key"
        names = ",".join(f"DNS:{name}" for name in NAMES)
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=conformance"]
        # It is its own authority, and no other's: verifiers differ about those that are both.
        make += ["-addext", "basicConstraints=critical,CA:FALSE"]
        make += ["-addext", f"subjectAltName={names}", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(make, check=True, capture_output=True)
        self.authority.write_bytes(certificate.read_bytes())
        self._child([*inside, sys.executable, "-c", WEB, str(certificate), str(key)])
        self._child([*inside, sys.executable, "-c", PROXY])
        self._names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._names.bind(("127.0.0.1", 0))
        threading.Thread(target=self._serve_names, daemon=True).start()
        self._config = self._scratch / f"internet-{os.getpid()}.toml"
        servers, roots = [f"127.0.0.1:{self._names.getsockname()[1]}"], [str(self.authority)]
        self._config.write_text(f"[egress]\nnameservers = {json.dumps(servers)}\nextra_roots = {json.dumps(roots)}\n")

    def _child(self, command: list[str]) -> subprocess.Popen:
        child = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], stdout=subprocess.PIPE, text=True)
        self._children.append(child)
        if child.stdout.readline() != "ready\n":
            raise RuntimeError(f"`{' '.join(command[:6])}` did not become ready")
        return child

    @property
    def options(self) -> list[str]:
        return ["--config", str(self._config)]

    @property
    def environment(self) -> dict[str, str]:
        return {"SANDBAR_CONFORMANCE_INTERNET": f"{PUBLIC} {OTHER}", "SANDBAR_CONFORMANCE_CA": str(self.authority)}

    def _serve_names(self) -> None:
        while True:
            try:
                query, client = self._names.recvfrom(4096)
            except OSError:
                return  # Closed: the run is over.
            self._names.sendto(answer(query, NAMES.get), client)

    def __exit__(self, *_) -> None:
        for child in reversed(self._children):
            child.kill()
            child.wait()
            child.stdout.close()
        if hasattr(self, "_names"):
            self._names.close()
        # The other end went with its namespace, and with it usually this one.
        subprocess.run(["ip", "link", "del", getattr(self, "_link", "none")], capture_output=True)


def answer(query: bytes, known) -> bytes:
    """To a one-question query: the A record of a known name, nothing for other types, or "no such name"."""
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace").lower())
        at += 1 + query[at]
    question = query[12 : at + 5]
    address = known(".".join(labels))
    found = address is not None and question[-4:-2] == b"\x00\x01"
    flags = 0x8180 if address else 0x8183
    reply = query[:2] + struct.pack(">HHHHH", flags, 1, int(found), 0, 0) + question
    if found:
        reply += b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04" + socket.inet_aton(address)
    return reply
