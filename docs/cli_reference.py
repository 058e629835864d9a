#!/usr/bin/env python3
"""Writes docs/cli-reference.md from `--help` of every command of a built program.

    python3 docs/cli_reference.py target/debug/sandbar            # writes the page
    python3 docs/cli_reference.py target/debug/sandbar --check    # fails when the page is not current

The environment is empty but for a home directory that does not exist, so that the page is the same on every machine.
"""

import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).with_name("cli-reference.md")
HOME = "/home/you"
HEAD = """# Reference of the command line

This page is `--help` of every command, written by `docs/cli_reference.py`; do not edit it. [The command line](cli.md) is the overview.
"""


def read_help(program: str, command: list[str]) -> str:
    """The long help of one command."""
    call = [program, *command, "--help"]
    result = subprocess.run(call, capture_output=True, text=True, timeout=60, check=False, env={"HOME": HOME, "XDG_DATA_HOME": f"{HOME}/.local/share", "PATH": "/usr/bin:/bin"})
    if result.returncode != 0:
        sys.exit(f"{' '.join(call)} fails with {result.returncode}: {result.stderr.strip()}")
    return "\n".join(line.rstrip() for line in result.stdout.strip().splitlines())


def subcommands(text: str) -> list[str]:
    """The names below "Commands:", without `help`."""
    section = re.search(r"^Commands:\n(.*?)(?:\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    names = re.findall(r"^  ([a-z][a-z-]*)(?:\s|$)", section.group(1), re.MULTILINE) if section else []
    return [name for name in names if name != "help"]


def sections(program: str, command: list[str]) -> list[str]:
    """One section for a command and one for each command below it."""
    text = read_help(program, command)
    level = "#" * min(len(command) + 2, 4) if command else "##"
    title = " ".join(["sandbar", *command])
    own = f"{level} {title}\n\n```text\n{text}\n```\n"
    return [own] + [section for name in subcommands(text) for section in sections(program, [*command, name])]


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    if len(arguments) != 1:
        sys.exit(f"usage: {sys.argv[0]} PROGRAM [--check]")
    page = "\n".join([HEAD, *sections(arguments[0], [])])
    if "--check" not in sys.argv:
        PAGE.write_text(page)
    elif not PAGE.exists() or PAGE.read_text() != page:
        sys.exit(f"{PAGE.name} is not current; run: python3 docs/cli_reference.py {arguments[0]}")


if __name__ == "__main__":
    main()
