"""Installs each SDK under test: pinned versions in the project's cache, installed once.

Every pinned SDK has its full set of versions in pins/. "newest" is whatever the registries offer now; it is asked for
at most once a day, and being unable to ask is no error.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CACHE = Path(os.environ.get("SANDBAR_CACHE", ROOT / ".cache")) / "conformance"
PINNED = {"python": ["2.13.2", "2.45.1", "2.63.0"], "js": ["2.51.0"]}
FLAVOURS = {"python": ["sync", "async"], "js": ["js"], "http": ["http"]}
ATTEMPTS = 4
NEWEST_MAX_AGE = 24 * 3600


class SetupError(Exception):
    """An environment could not be made; the text says what to do."""


@dataclass(frozen=True)
class Column:
    """One column of the table: one SDK version in one flavour."""

    language: str
    version: str
    flavour: str
    pinned: bool

    @property
    def title(self) -> str:
        match self.language:
            case "python":
                return f"Python {self.version} {self.flavour}"
            case "js":
                return f"JS {self.version}"
            case _:
                return "plain HTTP"

    @property
    def name(self) -> str:
        """What `--only` matches."""
        return "-".join(part for part in (self.language, self.version, self.flavour) if part)

    @property
    def directory(self) -> Path:
        return CACHE / f"{self.language}-{self.version}"

    def command(self, arguments: list[str]) -> list[str]:
        """What runs this column's scenarios."""
        match self.language:
            case "python":
                program = [str(self.directory / "bin" / "python"), str(HERE / "python" / "child.py")]
                return [*program, "--flavour", self.flavour, *arguments]
            case "js":
                return ["node", str(HERE / "js" / "child.mjs"), "--sdk", str(self.directory), *arguments]
            case _:
                return [sys.executable, str(HERE / "python" / "child.py"), "--flavour", "http", *arguments]


def columns(with_newest: bool) -> list[Column]:
    """All columns, oldest first, plain HTTP last. Asks the registries for the newest versions when wanted."""
    found = []
    for language, versions in PINNED.items():
        newest = _newest(language) if with_newest else None
        if newest and _key(newest) > max(map(_key, versions)):
            versions = [*versions, newest]
        for version in versions:
            pinned = version in PINNED[language]
            found += [Column(language, version, flavour, pinned) for flavour in FLAVOURS[language]]
    return [*found, Column("http", "", "http", True)]


def prepare(wanted: list[Column]) -> None:
    """Installs what is missing. Idempotent."""
    for language, version, pinned in dict.fromkeys((c.language, c.version, c.pinned) for c in wanted):
        directory = CACHE / f"{language}-{version}"
        if language == "python":
            _prepare(directory, HERE / "pins" / f"python-{version}.txt", pinned, version, _make_python)
        elif language == "js":
            if shutil.which("node") is None or shutil.which("npm") is None:
                raise SetupError("node and npm are needed for the JavaScript SDK: install nodejs and npm")
            _prepare(directory, HERE / "pins" / f"js-{version}" / "package-lock.json", pinned, version, _make_js)


def prepare_mcp() -> Path:
    """The official MCP client and inspector, pinned; where they are."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise SetupError("node and npm are needed for the MCP inspector: install nodejs and npm")
    directory = CACHE / "mcp"
    _prepare(directory, HERE / "pins" / "mcp" / "package-lock.json", True, "", _make_js)
    return directory


def prepare_mcp_python() -> Path:
    """The official Python MCP client, pinned; its interpreter."""
    directory = CACHE / "mcp-python"
    _prepare(directory, HERE / "pins" / "mcp-python.txt", True, "", _make_pinned)
    return directory / "bin" / "python"


def prepare_schemathesis() -> Path:
    """Schemathesis, pinned; the program."""
    directory = CACHE / "schemathesis"
    _prepare(directory, HERE / "pins" / "schemathesis.txt", True, "", _make_pinned)
    return directory / "bin" / "st"


def _prepare(directory: Path, pins: Path, pinned: bool, version: str, make) -> None:
    stamp = directory / ".ready"
    wanted = pins.read_text() if pinned else version
    wanted += f"\n{sys.version_info[:2]}"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"conformance: preparing {directory.name} …", flush=True)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    make(directory, pins if pinned else None, version)
    stamp.write_text(wanted)


def _make_python(directory: Path, pins: Path | None, version: str) -> None:
    if pins:
        _make_pinned(directory, pins, version)
    else:
        # The interpreter's newest that knows this version, if there is one.
        _install(directory, [f"e2b=={version}", "e2b-code-interpreter"])


def _make_pinned(directory: Path, pins: Path, _version: str) -> None:
    _install(directory, ["--no-deps", "-r", str(pins)])


def _install(directory: Path, wanted: list[str]) -> None:
    try:
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise SetupError(f"no virtual environment can be made (install python3-venv): {error.stdout}") from error
    pip = [str(directory / "bin" / "pip"), "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    _retried([*pip, *wanted], directory)


def _make_js(directory: Path, pins: Path | None, version: str) -> None:
    npm = ["npm", "--no-audit", "--no-fund", "--loglevel=error"]
    if pins:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(pins.parent / name, directory / name)
        _retried([*npm, "ci"], directory)
    else:
        (directory / "package.json").write_text('{"private": true, "type": "module"}\n')
        _retried([*npm, "install", f"e2b@{version}", "@e2b/code-interpreter"], directory)


def _retried(command: list[str], directory: Path) -> None:
    """Registries fail now and then; a download that failed once is tried again."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            result = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=600)
        except subprocess.TimeoutExpired:
            last = "no end within 600 s"
        else:
            if result.returncode == 0:
                return
            last = (result.stderr or result.stdout).strip()[-1500:]
        if attempt < ATTEMPTS:
            print(f"conformance: attempt {attempt} of {directory.name} failed, trying again", flush=True)
            time.sleep(2**attempt)
    raise SetupError(f"could not install into {directory.name}: {last}")


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _newest(language: str) -> str | None:
    """The newest release, remembered for a day; None when the registry does not answer."""
    memory = CACHE / f"newest-{language}.json"
    if memory.exists() and time.time() - memory.stat().st_mtime < NEWEST_MAX_AGE:
        return json.loads(memory.read_text())
    if language == "python":
        command = [sys.executable, "-m", "pip", "index", "versions", "e2b"]
    else:
        command = ["npm", "view", "e2b", "version"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        words = result.stdout.split()
        version = words[1].strip("()") if language == "python" else words[-1]
        _key(version)
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        print(f"conformance: the newest {language} release is not known ({type(error).__name__})", flush=True)
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    memory.write_text(json.dumps(version))
    return version
