"""What a client needs to use `https://PORT-ID.localhost:…` of a server: names that resolve, and a trusted authority.

Children of the run see a name server of ours, which knows every name under `localhost`, and the server's authority beside the
system's roots. Nothing outside them changes: their files are bound in a mount namespace of their own.
"""

import os
import random
import socket
import threading
from pathlib import Path

from internet import answer

SYSTEM_ROOTS = Path("/etc/ssl/certs/ca-certificates.crt")
BIND = 'mount --bind "$1" /etc/resolv.conf && mount --bind "$2" /etc/nsswitch.conf && shift 2 && exec "$@"'


class Hosts:
    """A context manager; `within` runs a command where the names are known, `environment` has it trust the server."""

    def __init__(self, scratch: Path, certificate: Path):
        self._scratch, self._certificate = scratch, certificate

    def __enter__(self) -> "Hosts":
        self._scratch.mkdir(parents=True, exist_ok=True)
        mine = f"hosts-{os.getpid()}"
        self._names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        address = self._bind()
        threading.Thread(target=self._serve, daemon=True).start()
        self._files = [self._scratch / f"{mine}.{kind}" for kind in ("resolv", "nsswitch", "authority.pem", "roots.pem")]
        resolv, nsswitch, authority, roots = self._files
        resolv.write_text(f"nameserver {address}\n")
        nsswitch.write_text("passwd: files\ngroup: files\nhosts: files dns\n")
        pem = self._certificate.read_text()
        authority.write_text(pem)
        roots.write_text(SYSTEM_ROOTS.read_text() + pem)
        return self

    def _bind(self) -> str:
        """An address of this machine's loopback whose port for names is free."""
        for _ in range(50):
            address = f"127.83.{random.randrange(256)}.{random.randrange(1, 255)}"
            try:
                self._names.bind((address, 53))
                return address
            except OSError:
                continue
        raise RuntimeError("no address of the loopback has its port 53 free")

    def _serve(self) -> None:
        def known(name: str) -> str | None:
            return "127.0.0.1" if name.endswith(".localhost") else None

        while True:
            try:
                query, client = self._names.recvfrom(4096)
            except OSError:
                return  # Closed: the run is over.
            self._names.sendto(answer(query, known), client)

    def within(self, command: list[str]) -> list[str]:
        resolv, nsswitch = self._files[:2]
        return ["unshare", "--mount", "sh", "-c", BIND, "sh", str(resolv), str(nsswitch), *command]

    @property
    def environment(self) -> dict[str, str]:
        _, _, authority, roots = self._files
        return {
            "SSL_CERT_FILE": str(roots),
            "NODE_EXTRA_CA_CERTS": str(authority),
            "SANDBAR_CONFORMANCE_HTTPS": "1",
        }

    def __exit__(self, *_) -> None:
        self._names.close()
        for file in self._files:
            file.unlink(missing_ok=True)
