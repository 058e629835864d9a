"""Proves a server against the official E2B SDKs and writes docs/compatibility.md.

    python3 conformance/run.py --server target/release/sandbar            all pinned SDKs, and the newest releases
    python3 conformance/run.py --server … --check                         fail unless the table holds as committed
    python3 conformance/run.py --server … --quick --only python-2.63    a small part, nothing is written
    python3 conformance/run.py --server … --https                         by E2B_DOMAIN over TLS, nothing is written
    python3 conformance/run.py --url http://127.0.0.1:4980 --key e2b_…    any other server that claims the protocol

Needs Python 3.11 and, for the JavaScript SDK, node and npm. Everything else is installed into .cache/ (SANDBAR_CACHE).
"""

import argparse
import concurrent.futures
import contextlib
import difflib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import environments  # noqa: E402
import machine  # noqa: E402
import report  # noqa: E402
from hosts import Hosts  # noqa: E402
from internet import Internet  # noqa: E402
from server import OwnServer, ServerError, Target  # noqa: E402

TABLE = environments.ROOT / "docs" / "compatibility.md"
# No scenario is longer than its own deadline (at most 240 s); a child silent for longer than this hangs.
SILENCE = 300.0
# What the table says.
CYCLES = 20


def main() -> int:
    arguments = _arguments()
    partial = arguments.quick or arguments.only or arguments.filter or arguments.https or arguments.cycles != CYCLES
    if arguments.check and partial:
        return _fail("--check needs a whole run")
    columns = environments.columns(with_newest=not arguments.no_newest)
    if arguments.only:
        columns = [c for c in columns if any(word in c.name for word in arguments.only.lower().split(","))]
    if not columns:
        return _fail(f"no SDK matches {arguments.only!r}")
    try:
        environments.prepare(columns)
    except environments.SetupError as error:
        return _fail(str(error))
    if arguments.prepare:
        return 0
    if arguments.server and os.geteuid() != 0:
        # Names for hosts and an internet take root: begin again where the user is. What is to be downloaded is there by now.
        try:
            machine.enter([sys.executable, *sys.argv])
        except machine.NoIds as error:
            return _fail(str(error))

    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        hosts = None
        if arguments.url:
            target = Target(arguments.url, arguments.sandbox_url or arguments.url, arguments.key)
        else:
            try:
                internet = stack.enter_context(Internet(environments.CACHE / "internet"))
                options = internet.options + (arguments.server_option or [])
                target = stack.enter_context(OwnServer(arguments.server, environments.CACHE / "servers", options))
                hosts = stack.enter_context(Hosts(environments.CACHE / "hosts", target.certificate))
                os.environ.update(internet.environment | hosts.environment)
                target = target.over_tls() if arguments.https else target
            except ServerError as error:
                return _fail(str(error))
        results = _run(columns, target, hosts, arguments)
    seconds = time.monotonic() - started
    return _conclude(results, arguments, partial, seconds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, help="the sandbar executable to start for this run")
    parser.add_argument("--server-option", action="append", help="one more argument for `sandbar up`; may be repeated")
    parser.add_argument("--url", help="a server that already runs")
    parser.add_argument("--sandbox-url", help="its sandbox URL, when that is another one")
    parser.add_argument("--key", default=os.environ.get("E2B_API_KEY", ""), help="its key (default: E2B_API_KEY)")
    parser.add_argument("--prepare", action="store_true", help="install the SDKs, run nothing")
    parser.add_argument("--quick", action="store_true", help="the most important scenarios only")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the table would change or any mark is ✗")
    parser.add_argument("--only", help="columns whose name contains one of these, comma separated: `python-2.63.0-sync`, `js`, `http`")
    parser.add_argument("--filter", default="", help="scenarios whose name contains this")
    parser.add_argument("--cycles", type=int, default=CYCLES, help=f"pause/resume cycles (default {CYCLES})")
    parser.add_argument("--soak", action="store_true", help="only the pause/resume cycles, 100 of them; nothing is written")
    parser.add_argument("--workers", type=int, default=3, help="columns at once (default 3)")
    parser.add_argument("--concurrency", type=int, default=3, help="scenarios at once in a column (default 3)")
    parser.add_argument("--https", action="store_true", help="everything over TLS with E2B_DOMAIN and no URL, as with E2B's cloud; nothing is written")
    parser.add_argument("--no-newest", action="store_true", help="do not ask the registries for newer releases")
    parser.add_argument("--json", type=Path, help="write every outcome, with traces, to this file")
    arguments = parser.parse_args()
    if bool(arguments.server) == bool(arguments.url) and not arguments.prepare:
        parser.error("give either --server or --url")
    if arguments.https and not arguments.server:
        parser.error("--https needs --server, whose authority can be trusted")
    if arguments.soak:
        arguments.filter, arguments.cycles = "cycles", 100
    if arguments.server:
        arguments.server = arguments.server.resolve()
        if not arguments.server.is_file():
            parser.error(f"{arguments.server} does not exist; build it first")
    return arguments


def _run(columns: list[environments.Column], target: Target, hosts: Hosts | None, arguments) -> list[report.Results]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("E2B_")}
    environment |= target.environment() | {"SANDBAR_CONFORMANCE_CYCLES": str(arguments.cycles)}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "NO_PROXY": "*"}
    options = ["--concurrency", str(arguments.concurrency), "--filter", arguments.filter]
    options += ["--quick"] if arguments.quick else []
    lock = threading.Lock()

    def column(one: environments.Column) -> report.Results:
        result = report.Results(one.title, "http" if one.language == "http" else "sdk", one.pinned)
        started = time.monotonic()
        command = one.command(options)
        _child(hosts.within(command) if hosts else command, environment, result, lock)
        with lock:
            seconds = time.monotonic() - started
            passed, failed = result.count("passed"), len(result.failures)
            print(f"{one.title}: {passed} passed, {failed} failed, {result.count('absent')} absent, {seconds:.0f} s", flush=True)
            if result.broken:
                print(f"  {result.broken}", flush=True)
        return result

    with concurrent.futures.ThreadPoolExecutor(max_workers=arguments.workers) as pool:
        return list(pool.map(column, columns))


def _child(command: list[str], environment: dict[str, str], result: report.Results, lock: threading.Lock) -> None:
    """Runs one child to its end and takes in its JSON lines. A child that dies or falls silent is a failure."""
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        complaints = bytearray()
        drain = threading.Thread(target=lambda: complaints.extend(child.stderr.read()), daemon=True)
        drain.start()
        finished = False
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while selector.select(SILENCE):
                got = os.read(child.stdout.fileno(), 65536)
                if not got:
                    break
                *lines, pending = (pending + got).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    finished = finished or message.get("finished", False)
                    if "scenario" in message:
                        result.outcomes.append(message)
                        if message["outcome"] == "failed":
                            with lock:
                                print(f"✗ {result.title} {message['scenario']}: {message['reason']}", flush=True)
        if not finished:
            child.kill()
            drain.join(5)
            tail = complaints.decode("utf-8", "replace").strip()[-1500:]
            result.broken = f"the child did not finish: {tail or 'no output'}"


def _conclude(results: list[report.Results], arguments, partial, seconds: float) -> int:
    if arguments.json:
        content = [{"column": r.title, "pinned": r.pinned, "broken": r.broken, "outcomes": r.outcomes} for r in results]
        arguments.json.write_text(json.dumps(content, indent=1, ensure_ascii=False))
    strangers = report.unknown_rows(results)
    if strangers:
        return _fail(f"calls.json lacks rows that scenarios name: {strangers}")
    pinned = [r for r in results if r.pinned]
    newer = [r for r in results if not r.pinned]
    failed = sum(len(r.failures) + bool(r.broken) for r in pinned)
    passed = sum(r.count("passed") for r in pinned)
    if passed + failed == 0:
        return _fail("no scenario ran")
    code = 1 if failed else 0
    if not partial:
        text = report.table(pinned)
        code = max(code, _table(text, arguments.check))
    for result in newer:
        print(f"newer than pinned, for information: {result.title}: {len(result.failures)} failed")
    print(f"conformance: {passed} passed, {failed} failed in {seconds:.0f} s")
    return code


def _table(text: str, check: bool) -> int:
    code = 0
    if report.FAILED in text.split("\n## ", 1)[1]:
        print("conformance: the table has failures")
        code = 1
    old = TABLE.read_text() if TABLE.exists() else ""
    if check and old != text:
        for line in difflib.unified_diff(old.splitlines(), text.splitlines(), "committed", "this run", lineterm="", n=0):
            print(line)
        print(f"conformance: {TABLE.relative_to(environments.ROOT)} is not what this run gives; run `./dev conformance`")
        return 1
    if not check and old != text:
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        TABLE.write_text(text)
        print(f"conformance: wrote {TABLE.relative_to(environments.ROOT)}")
    return code


def _fail(text: str) -> int:
    print(f"conformance: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
