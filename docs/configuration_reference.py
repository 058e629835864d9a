#!/usr/bin/env python3
"""Writes docs/configuration-reference.md from `sandbar config schema` of a built program: every key, from the types that read it.

    python3 docs/configuration_reference.py target/debug/sandbar            # writes the page
    python3 docs/configuration_reference.py target/debug/sandbar --check    # fails when the page is not current

Keys stand in the order of the file that `sandbar config init` writes.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration-reference.md"
TEMPLATE = ROOT / "crates" / "sandbar" / "src" / "config_template.toml"
HEAD = """# Every key of the configuration

This page is written from the types that read the file, by `docs/configuration_reference.py`; do not edit it.
[Configuration](configuration.md) says where values come from. `sandbar config init` writes a file with all of these keys, and
`sandbar config schema` prints them as a JSON Schema.
"""


def schema(program: str) -> dict:
    call = [program, "config", "schema"]
    result = subprocess.run(call, capture_output=True, text=True, timeout=60, check=False, env={"HOME": "/home/you", "PATH": "/usr/bin:/bin"})
    if result.returncode != 0:
        sys.exit(f"{' '.join(call)} fails with {result.returncode}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def order() -> list[str]:
    """The keys and sections of the file to begin with, in its order."""
    section, found = "", []
    for line in TEMPLATE.read_text().splitlines():
        if heading := re.match(r"# \[+([^\]]+)\]", line):
            section = re.sub(r'\."[^"]*"', ".NAME", heading.group(1))
            found.append(section)
        elif key := re.match(r"# ([a-z0-9_]+) = ", line):
            found.append(f"{section}.{key.group(1)}".removeprefix("."))
    return found


def is_table(node: dict) -> bool:
    return "properties" in node or any("properties" in variant for variant in node.get("oneOf", []))


def table_of(node: dict) -> tuple[dict, str, str] | None:
    """The table that a key holds, what opens and closes its heading, and what its keys have before their names."""
    if is_table(node):
        return node, "[]", ""
    if is_table(node.get("items", {})):
        return node["items"], "[[]]", ""
    if isinstance(node.get("additionalProperties"), dict) and is_table(node["additionalProperties"]):
        return node["additionalProperties"], "[]", ".NAME"
    return None


def properties(node: dict) -> dict:
    """Of a table; of a choice between tables, of all of them."""
    found = dict(node.get("properties", {}))
    for variant in node.get("oneOf", []):
        found |= variant.get("properties", {})
    return found


def kind(node: dict) -> str:
    if "oneOf" in node or "enum" in node:
        return "text"
    match node.get("type"):
        case "array":
            return f"list of {plural(kind(node['items']))}"
        case "object":
            return "table"
        case "string":
            return "text"
        case "integer":
            return "integer"
        case "boolean":
            return "boolean"
        case other:
            return str(other)


def plural(word: str) -> str:
    return {"text": "texts", "integer": "integers"}.get(word, word)


def default(node: dict, required: bool) -> str:
    if "x-default" in node:
        return node["x-default"]
    if required:
        return "required"
    value = node.get("default")
    if value is None:
        return "`[]`" if node.get("type") == "array" else "none"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"`{json.dumps(value)}`"


def text(node: dict) -> str:
    meaning = " ".join(node.get("description", "").split())
    choices = [choice for choice in node.get("oneOf", []) if "const" in choice]
    if choices:
        meaning += " " + "; ".join(f"`{choice['const']}`: {' '.join(choice.get('description', '').split()).rstrip('.')}" for choice in choices) + "."
    return meaning.replace("|", "\\|")


def section(node: dict, path: str, brackets: str, meaning: str, places: list[str]) -> list[str]:
    """The section of one table, then those of the tables in it."""

    def place(name: str) -> tuple[int, str]:
        whole = f"{path}.{name}".removeprefix(".")
        found = next((number for number, known in enumerate(places) if known == whole or known.startswith(f"{whole}.")), len(places))
        return found, name

    half = len(brackets) // 2
    title = f"## `{brackets[:half]}{path}{brackets[half:]}`" if path else "## The server"
    rows, below = [], []
    keys = properties(node)
    for name in sorted(keys, key=place):
        key, whole = keys[name], f"{path}.{name}".removeprefix(".")
        if inner := table_of(key):
            below += section(inner[0], whole + inner[2], inner[1], text(key), places)
        else:
            rows.append(f"| `{whole}` | {kind(key)} | {default(key, name in node.get('required', []))} | {text(key)} |")
    lines = [title, ""]
    lines += [meaning, ""] if meaning else []
    if rows:
        lines += ["| key | type | default | meaning |", "|---|---|---|---|", *rows, ""]
    # A table with tables only needs no section of its own.
    return (lines if rows else []) + below


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    if len(arguments) != 1:
        sys.exit(f"usage: {sys.argv[0]} PROGRAM [--check]")
    page = HEAD + "\n" + "\n".join(section(schema(arguments[0]), "", "", "", order())).rstrip() + "\n"
    if "--check" not in sys.argv:
        PAGE.write_text(page)
    elif not PAGE.exists() or PAGE.read_text() != page:
        sys.exit(f"{PAGE.name} is not current; run: python3 docs/configuration_reference.py {arguments[0]}")


if __name__ == "__main__":
    main()
