#!/usr/bin/env python3
"""Runs the examples of README.md and docs/*.md against real servers, and compares what they print.

    python3 docs/run_examples.py target/debug/sandbar
    python3 docs/run_examples.py target/debug/sandbar --only sandboxes,README

Every page has a server of its own on 127.0.0.1:4980, in a network namespace where that port is free, and a home directory of its
own. Its blocks run in order: `sh`, `python` (the official SDK), `js` (the official SDK) and `rust`; variables and the directory of
a shell block are there in the next one. `toml` and `json` are parsed, the former as Sandbar's configuration, `ini` is verified as a
systemd unit. A `text` block directly below an example is what it must print; `…` in it stands for anything.

Comments that readers do not see, before a block:

    <!-- not run: REASON -->        the block is not run; a run lists all of these
    <!-- setup: LINES OF SHELL -->  runs in the page's shell at this place
    <!-- typed: LINE -->            the block runs in a terminal, where this is typed until it ends
    <!-- file: NAME -->             the block is written to this file
    <!-- program: PATH -->          the block stands in this example of a crate, and the built example is run

The internet is not there. Needs python3-venv, node and npm, as conformance/ does; its pinned SDKs are used.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "conformance"))

import environments  # noqa: E402
import machine  # noqa: E402

PYTHON, JS = "2.63.0", "2.51.0"
LISTEN = "127.0.0.1:4980"
START_DEADLINE = 120.0
BLOCK_DEADLINE = 60.0
TYPED_AGAIN = 0.5
PAGE_DEADLINE = 300.0
STOP_DEADLINE = 60.0
# Pages at once: each waits for its sandboxes most of the time.
PAGES_AT_ONCE = 3
RUN = {"sh", "python", "js", "rust", "toml", "json", "ini"}
SHOWN = {"text", "mermaid", "dockerfile"}


class Failed(Exception):
    """An example does not do what its page says."""


@dataclass
class Block:
    page: str
    line: int
    language: str
    text: str
    # Of the comments before it.
    skipped: str | None = None
    typed: str | None = None
    file: str | None = None
    program: str | None = None
    # What it must print.
    expected: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


COMMENT = re.compile(r"<!--\s*(not run|setup|typed|file|program):\s*(.*?)\s*-->", re.DOTALL)
FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2[ \t]*$", re.DOTALL | re.MULTILINE)


def read(page: Path) -> list[Block]:
    """The blocks of a page in order, with what the comments and `text` blocks around them say."""
    name, text = str(page.relative_to(ROOT)), page.read_text()
    found = [(match.start(), match) for match in FENCE.finditer(text)]
    fences = [(match.start(), match.end()) for _, match in found]
    outside = [match for match in COMMENT.finditer(text) if not any(start < match.start() < end for start, end in fences)]
    blocks: list[Block] = []
    marks: dict[str, str] = {}
    end = 0
    for start, match in sorted([*found, *((match.start(), match) for match in outside)], key=lambda pair: pair[0]):
        line = text.count("\n", 0, start) + 1
        if match.re is COMMENT:
            kind, value = match.groups()
            if kind == "setup":
                blocks.append(Block(name, line, "sh", value))
            else:
                marks[kind] = value
            continue
        indentation, _, language, body = match.groups()
        body = "".join(row.removeprefix(indentation) for row in body.splitlines(keepends=True))
        language = language.strip().split(",")[0]
        if language == "text" and blocks and not text[end:start].strip():
            blocks[-1].expected = body
        else:
            comments = [marks.pop(kind, None) for kind in ("not run", "typed", "file", "program")]
            if language not in RUN | SHOWN:
                raise Failed(f"{name}:{line}: nothing runs a block of `{language or 'no language'}`; name one of {', '.join(sorted(RUN | SHOWN))}")
            blocks.append(Block(name, line, language, body, *comments))
        end = match.end()
    if marks:
        raise Failed(f"{name}: no block follows the comment {marks}")
    return blocks


def matches(expected: str, printed: str) -> bool:
    """Whether a text is what an example must print; trailing blanks and empty lines at the end do not count."""

    def tidy(text: str) -> str:
        return "\n".join(line.rstrip() for line in text.strip().splitlines())

    return re.fullmatch(".*?".join(map(re.escape, tidy(expected).split("…"))), tidy(printed), re.DOTALL) is not None


class Page:
    """A page's server, home directory and shell; a context manager."""

    def __init__(self, program: Path):
        self._program = program

    def __enter__(self) -> "Page":
        self._scratch = Path(tempfile.mkdtemp(prefix="sandbar-examples-"))
        self._home, self._work, programs = (self._scratch / name for name in ("home", "work", "bin"))
        for directory in (self._home, self._work, programs):
            directory.mkdir()
        (programs / "sandbar").symlink_to(self._program)
        python, js = (environments.CACHE / name for name in (f"python-{PYTHON}", f"js-{JS}"))
        (self._work / "node_modules").symlink_to(js / "node_modules")
        (self._work / "examples").symlink_to(ROOT / "examples")
        self._environment = {
            "PATH": f"{programs}:{python / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self._home),
            "USER": os.environ.get("USER", "root"),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }
        self._state = self._scratch / "state"
        self._log = open(self._scratch / "server.log", "wb")
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        command = [str(self._program), "up", "--listen", LISTEN]
        # Also when this program is killed: the server ends, and with it its sandboxes.
        self._server = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command, "--ephemeral"],
            cwd=self._home, env=self._environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True,
        )
        deadline = time.monotonic() + START_DEADLINE
        while True:
            printed = subprocess.run(
                [self._program, "env", "--json"], env=self._environment, capture_output=True, text=True, timeout=START_DEADLINE
            )
            if printed.returncode == 0:
                break
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"`{' '.join(command)}` did not become ready: {self.log()}")
            time.sleep(0.1)
        self._environment |= {name: value for name, value in json.loads(printed.stdout).items() if isinstance(value, str)}

    def log(self) -> str:
        return (self._scratch / "server.log").read_text(errors="replace")[-2000:]

    def __exit__(self, *_) -> None:
        server = getattr(self, "_server", None)
        if server and server.poll() is None:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(STOP_DEADLINE)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(10)
        self._log.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def run(self, block: Block) -> None:
        """Runs one block; fails with what it printed when it fails or prints something else."""
        if block.file:
            (self._work / block.file).write_text(block.text)
            return
        printed = self._printed(block)
        if block.expected is not None and not matches(block.expected, printed):
            raise Failed(f"{block.place}: it prints\n{printed}\nand should print\n{block.expected}")

    def _printed(self, block: Block) -> str:
        match block.language:
            case "sh":
                # `declare -p` has the variables as bash reads them again; its own cannot be set.
                script = (
                    f"set -eo pipefail\n[ ! -e '{self._state}' ] || {{ source '{self._state}' && cd \"$PWD\"; }} 2>/dev/null\n"
                    f"trap 'code=$?; declare -p | grep -Ev \"^declare -[a-zA-Z]*r|^declare -[-aAx]* (BASH|FUNCNAME|DIRSTACK|GROUPS|PIPESTATUS|code|_=)\" > {self._state}; "
                    "exit $code' EXIT\n"
                )
                return self._call(block, ["bash", "-c", script + block.text])
            case "python":
                (self._work / "example.py").write_text(block.text)
                return self._call(block, ["python", "example.py"])
            case "js":
                (self._work / "example.mjs").write_text(block.text)
                return self._call(block, ["node", "example.mjs"])
            case "rust":
                return self._rust(block)
            case "toml":
                (self._work / "example.toml").write_text(block.text)
                return self._call(block, ["sandbar", "config", "show", "--config", "example.toml"])
            case "json":
                json.loads(block.text)
                return ""
            case "ini":
                return self._unit(block)
        return ""

    def _call(self, block: Block, command: list[str]) -> str:
        """What a command prints. It and all that it started in its session ends here."""
        with tempfile.TemporaryFile() as output:
            # The terminal is a process of its own: what happens in it ends with it.
            terminal = ["script", "--quiet", "--return", "--echo=never", "--command", shlex.join(command), "/dev/null"]
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *(terminal if block.typed else command)],
                cwd=self._work,
                env=self._environment,
                stdin=subprocess.PIPE if block.typed else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                code = self._wait(process, block.typed)
            finally:
                self._end(process)
            output.seek(0)
            printed = output.read().decode(errors="replace")
        if code != 0:
            why = f"fails with {code}" if code is not None else f"does not end within {BLOCK_DEADLINE:.0f} s"
            raise Failed(f"{block.place}: the example {why}:\n{block.text}\nIt printed:\n{printed}\nThe server's log ends with:\n{self.log()}")
        return printed

    @staticmethod
    def _wait(process: subprocess.Popen, typed: str | None) -> int | None:
        """The exit code, or none when the deadline is over."""
        deadline = time.monotonic() + BLOCK_DEADLINE
        while time.monotonic() < deadline:
            try:
                return process.wait(TYPED_AGAIN if typed else BLOCK_DEADLINE)
            except subprocess.TimeoutExpired:
                if typed:
                    # A program that takes the terminal over discards what was typed before.
                    with contextlib.suppress(BrokenPipeError):
                        process.stdin.write(f"{typed}\n".encode())
                        process.stdin.flush()
        return None

    @staticmethod
    def _end(process: subprocess.Popen) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_DEADLINE)
        if process.stdin:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()

    def _rust(self, block: Block) -> str:
        if block.program is None:
            raise Failed(f"{block.place}: name the example of a crate that has these lines: <!-- program: crates/…/examples/….rs -->")

        def lines(text: str) -> str:
            return "\n".join(line.strip() for line in text.strip().splitlines())

        if lines(block.text) not in lines((ROOT / block.program).read_text()):
            raise Failed(f"{block.place}: {block.program} does not have these lines")
        built = self._program.parent / "examples" / Path(block.program).stem
        if not built.exists():
            raise Failed(f"{block.place}: {built} is not there; run: cargo build --examples")
        return self._call(block, [str(built)])

    def _unit(self, block: Block) -> str:
        verify = shutil.which("systemd-analyze")
        if verify is None:
            return ""
        # Where the unit looks for the program there need not be one.
        text = re.sub(r"^ExecStart=\S+/sandbar", f"ExecStart={self._program}", block.text, flags=re.MULTILINE)
        unit = self._work / "sandbar.service"
        unit.write_text(text)
        return self._call(block, [verify, "verify", "--man=no", "--recursive-errors=no", str(unit)])


def run_page(program: Path, page: Path) -> None:
    """All blocks of a page, in a server of its own; runs in the page's network namespace."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # Where examples keep what is not their own, as a disk that is mounted there.
    subprocess.run(["mount", "-t", "tmpfs", "examples", "/mnt"], check=True)
    runnable = [block for block in read(page) if not block.skipped and (block.language in RUN or block.file)]
    deadline = time.monotonic() + PAGE_DEADLINE
    with Page(program) as opened:
        for block in runnable:
            if time.monotonic() > deadline:
                raise Failed(f"{block.place}: the page takes longer than {PAGE_DEADLINE:.0f} s")
            started = time.monotonic()
            opened.run(block)
            print(f"  {block.place} {block.language}: {time.monotonic() - started:.1f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="the sandbar executable")
    parser.add_argument("--only", help="pages by name, separated by commas")
    parser.add_argument("--page", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    program = arguments.program.resolve()
    try:
        if arguments.page:
            run_page(program, arguments.page)
            return 0
        environments.prepare([environments.Column("python", PYTHON, "sync", True), environments.Column("js", JS, "js", True)])
        if os.geteuid() != 0:
            # Networks of its own take root: begin again where the user is.
            machine.enter([sys.executable, *sys.argv])
        return run_pages(program, arguments.only)
    except (Failed, environments.SetupError, machine.NoIds) as error:
        print(f"examples: {error}", file=sys.stderr)
        return 1


def run_pages(program: Path, only: str | None) -> int:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    pages = [page for page in pages if not only or page.stem in only.split(",")]
    blocks = {page: read(page) for page in pages}
    wanted = [page for page in pages if any(block.language in RUN and not block.skipped for block in blocks[page])]
    failures = []
    started = time.monotonic()

    def one(page: Path) -> tuple[Path, subprocess.CompletedProcess]:
        command = ["unshare", "--net", "--mount", sys.executable, __file__, str(program), "--page", str(page)]
        # It ends its own server when it is ended, and each step of it has a deadline.
        return page, subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PAGE_DEADLINE + START_DEADLINE + 2 * STOP_DEADLINE + BLOCK_DEADLINE
        )

    # Long pages first.
    wanted.sort(key=lambda page: -len(blocks[page]))
    with concurrent.futures.ThreadPoolExecutor(PAGES_AT_ONCE) as pool:
        for done in concurrent.futures.as_completed([pool.submit(one, page) for page in wanted]):
            page, result = done.result()
            print(f"{page.relative_to(ROOT)}: {'ok' if result.returncode == 0 else 'FAILED'}\n{result.stdout}", end="", flush=True)
            if result.returncode != 0:
                failures.append(page)
                print(result.stderr, file=sys.stderr, flush=True)
    skipped = [block for page in pages for block in blocks[page] if block.skipped]
    if skipped:
        print("not run:")
    for block in skipped:
        print(f"  {block.place}: {block.skipped}")
    run = sum(not block.skipped and block.language in RUN for page in pages for block in blocks[page])
    print(f"{run} examples of {len(wanted)} pages in {time.monotonic() - started:.0f} s, {len(skipped)} not run, {len(failures)} pages failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
