"""Starts a Sandbar server for one run, and ends it in any case."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

START_DEADLINE = 120.0
STOP_DEADLINE = 60.0
# Of earlier runs; each is about 100 KiB.
LOGS_KEPT = 9


@dataclass(frozen=True)
class Target:
    """A server that claims the protocol."""

    url: str
    sandbox_url: str
    key: str
    # Of the studio's first user.
    token: str | None = None
    # Of the authority that signs for its hosts, when it is ours to know.
    certificate: Path | None = None
    # Given, SDKs get this domain and no URL, as with E2B's cloud.
    domain: str | None = None

    def over_tls(self) -> "Target":
        """The same server by the names its certificates are for."""
        domain = f"localhost:{urllib.parse.urlsplit(self.url).port}"
        return dataclasses.replace(self, url=f"https://{domain}", sandbox_url=f"https://{domain}", domain=domain)

    def environment(self) -> dict[str, str]:
        # For requests that scenarios make without an SDK.
        plain = {"SANDBAR_CONFORMANCE_URL": self.url, "SANDBAR_CONFORMANCE_SANDBOX_URL": self.sandbox_url}
        if self.domain:
            return {"E2B_API_KEY": self.key, "E2B_DOMAIN": self.domain, **plain}
        urls = {"E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.sandbox_url, "E2B_VOLUME_API_URL": self.url}
        return {"E2B_API_KEY": self.key, **urls, **plain}


class ServerError(Exception):
    """The server did not start, or did not end."""


class OwnServer:
    """`sandbar up --ephemeral` on a free port with a data directory of its own; a context manager."""

    def __init__(self, program: Path, scratch: Path, options: list[str] | None = None):
        self._program, self._scratch, self._options = program, scratch, options or []
        self._lines: list[str] = []

    def __enter__(self) -> Target:
        self._scratch.mkdir(parents=True, exist_ok=True)
        for old in sorted(self._scratch.glob("*.log"), key=lambda log: log.stat().st_mtime)[:-LOGS_KEPT]:
            old.unlink(missing_ok=True)
        self._data = Path(tempfile.mkdtemp(prefix="data-", dir=self._scratch))
        self.log = self._data.with_suffix(".log")
        command = [str(self._program), "up", "--listen", "127.0.0.1:0", "--data", str(self._data), "--ephemeral"]
        # Settings of the person who runs this must not reach the server under test.
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("E2B_", "SANDBAR_"))}
        self._errors = open(self.log, "wb")
        self._process = subprocess.Popen(
            # Also when this program is killed: the server ends, and with it its sandboxes.
            ["setpriv", "--pdeathsig", "TERM", *command, *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=clean,
            text=True,
            start_new_session=True,
        )
        ready = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(ready,), daemon=True)
        self._reader.start()
        target = self._target(clean) if ready.wait(START_DEADLINE) else None
        if target is None:
            self.__exit__()
            tail = self.log.read_text(errors="replace")[-2000:]
            raise ServerError(f"`{' '.join(command)}` did not become ready:\n{''.join(self._lines)}{tail}")
        return target

    def _read(self, ready: threading.Event) -> None:
        for line in self._process.stdout:
            self._lines.append(line)
            if line.startswith("ready: "):
                ready.set()
        ready.set()  # End of output: the server is gone; the waiter reads its output.

    def _target(self, clean: dict[str, str]) -> Target | None:
        if not re.search(r"^ready: http", "".join(self._lines), re.M):
            return None
        # Keys are printed to terminals only.
        command = [str(self._program), "env", "--json", "--data", str(self._data)]
        printed = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=START_DEADLINE)
        if printed.returncode != 0:
            self._lines.append(printed.stderr)
            return None
        exported = json.loads(printed.stdout)
        url = exported["E2B_API_URL"]
        certificate = self._data / "authority" / "hosts" / "certificate.pem"
        sandbox_url, token = exported.get("E2B_SANDBOX_URL", url), exported.get("SANDBAR_TOKEN")
        return Target(url, sandbox_url, exported["E2B_API_KEY"], token, certificate)

    def __exit__(self, *_) -> None:
        """Ends the server: with SIGTERM first, then with SIGKILL."""
        process = self._process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            print("conformance: the server did not end on SIGTERM and was killed", flush=True)
        self._reader.join(5)
        self._errors.close()
        shutil.rmtree(self._data, ignore_errors=True)
