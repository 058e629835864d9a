"""Proves the studio's OpenAPI document with schemathesis: what a real `sandbar up` answers is what the document says.

    python3 conformance/studio.py --server target/release/sandbar

Twice: whatever can be sent to every call, with ids that name nothing; then every GET of an existing build. No response
may be a failure of the server, none may differ from the document, and what breaks its rules must be refused.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import environments  # noqa: E402
from server import OwnServer, ServerError, Target  # noqa: E402

BUILD_DEADLINE = 300.0
RUN_DEADLINE = 300.0
# The same every time: a run that passed once passes again.
SEED = 20261116
EXAMPLES = 5
EXAMPLES_OF_ONE = 2

# Streams without end, and what needs a WebSocket: tests of our own drive them.
LEFT_OUT = r"/(events|terminal)$"
# Rules that the document cannot express give 422: an invalid regular expression, an unknown model. 402: no credit is left.
ALLOWED = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "402", "404", "409", "422", "429"]

[checks.negative_data_rejection]
expected-statuses = ["400", "401", "402", "404", "405", "409", "413", "415", "422", "429"]
"""


class Failed(Exception):
    """An answer is not what the document says."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, required=True, help="the sandbar executable to start")
    program = parser.parse_args().server.resolve()
    try:
        schemathesis = environments.prepare_schemathesis()
        server = OwnServer(program, environments.CACHE / "servers")
        with server as target, tempfile.TemporaryDirectory() as scratch:
            if target.token is None:
                raise Failed("`sandbar up` printed no SANDBAR_TOKEN: the studio is not served")
            job = _build(target)
            # Reads first: the other run may delete the build.
            reads = ["--include-name-regex", r"^GET /api/\w+/\{job_id\}"]
            _run(schemathesis, target, Path(scratch), EXAMPLES_OF_ONE, f'[parameters]\n"path.job_id" = "{job}"\n', reads)
            _run(schemathesis, target, Path(scratch), EXAMPLES, "", [])
    except (environments.SetupError, ServerError, Failed) as error:
        print(f"studio: {error}", file=sys.stderr)
        return 1
    return 0


def _build(target: Target) -> str:
    """A build that is ready."""
    job = _call(target, "POST", "/api/generation", {"name": "a page", "goal": "Make a page.", "model": "scripted:demo"})
    deadline = time.monotonic() + BUILD_DEADLINE
    while (status := _call(target, "GET", f"/api/generation/{job['job_id']}/status"))["status"] != "ready":
        if status["status"] in ("failed", "cancelled") or time.monotonic() > deadline:
            raise Failed(f"the build did not become ready: {status}")
        time.sleep(0.2)
    return job["job_id"]


def _call(target: Target, method: str, path: str, body: dict | None = None) -> dict:
    content = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {target.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(target.url + path, content, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise Failed(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from error


def _run(program: Path, target: Target, scratch: Path, examples: int, settings: str, options: list[str]) -> None:
    config = scratch / "schemathesis.toml"
    config.write_text(settings + ALLOWED)
    command = [str(program), "--config-file", str(config), "run", f"{target.url}/api/openapi.json"]
    command += ["--header", f"Authorization: Bearer {target.token}", "--checks", "all", "--exclude-path-regex", LEFT_OUT]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", str(examples), "--seed", str(SEED), "--workers", "1"]
    command += ["--request-timeout", "60", "--rate-limit", "200/s", "--suppress-health-check", "all", "--continue-on-failure"]
    started = time.monotonic()
    try:
        result = subprocess.run([*command, *options], cwd=scratch, timeout=RUN_DEADLINE)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"schemathesis did not end within {RUN_DEADLINE:.0f} s") from error
    if result.returncode != 0:
        raise Failed("schemathesis found that answers and document differ; see above")
    print(f"studio: the document tells the truth, {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
