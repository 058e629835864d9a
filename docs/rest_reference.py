#!/usr/bin/env python3
"""Writes docs/rest-reference.md from the OpenAPI documents of the control plane and the studio.

    python3 docs/rest_reference.py            # writes the page
    python3 docs/rest_reference.py --check    # fails when the page is not current

The documents are those that the tests of both crates hold against the types and the routes (`GOLDEN=write` renews them). The calls
of the control plane are also held against those of the conformance suite, which asks a real server for each.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "rest-reference.md"
CONTROL = ROOT / "crates" / "protocol" / "tests" / "golden" / "openapi.json"
STUDIO = ROOT / "crates" / "studio" / "tests" / "studio" / "golden" / "openapi.json"
ENDPOINTS = ROOT / "conformance" / "endpoints.json"
METHODS = ("get", "post", "put", "patch", "delete")
HEAD = """# Every call

This page is written from the server's OpenAPI documents, by `docs/rest_reference.py`; do not edit it. [REST](rest.md) is the overview:
which part of the server takes which key.

## The control plane

Calls take `X-API-Key: $E2B_API_KEY` unless they say otherwise. Besides the responses below, each may answer:

| status | meaning |
|---|---|
| 400 | the body or the query cannot be read, or a value is not allowed |
| 401 | the key is missing or wrong |
| 408, 413 | the body did not come in time, or is too long |
| 501 | a setting that this server does not have |
| 503 | the server is stopping |
| 507 | the server's disk refuses changes; nothing was recorded |

The body of an error is an [ErrorBody](#errorbody); its message says what to do.
"""
STUDIO_HEAD = """## The studio

Calls take `Authorization: Bearer $SANDBAR_TOKEN` or a browser's session; with a session, what changes something also needs `X-Sandbar-Csrf: 1`.
A running server has this document at `GET /api/openapi.json`. Reading anything never resumes a sandbox.

| status | meaning |
|---|---|
{rows}

The body of an error is an [Error](#error).
"""
KEY = '-H "X-API-Key: $E2B_API_KEY"'
JSON = "-H 'Content-Type: application/json'"
TOKEN = '-H "Authorization: Bearer $SANDBAR_TOKEN"'
# The shell after which `ID` and `JOB` are what examples need.
SANDBOX = f"<!-- setup: ID=$(curl --silent {KEY} $E2B_API_URL/v2/sandboxes | grep -o '\"sandboxID\":\"[^\"]*' | head -n 1 | cut -d '\"' -f 4) -->\n"
BUILD = f"<!-- setup: JOB=$(curl --silent {TOKEN} $E2B_API_URL/api/jobs | grep -o 'job_[0-9a-f]*' | head -n 1) -->\n"
# Run in the order of the page, as all examples are.
EXAMPLES = {
    "POST /v2/sandboxes": f"curl {KEY} {JSON} -d '{{\"templateID\": \"base\", \"timeout\": 300}}' $E2B_API_URL/v2/sandboxes",
    "GET /v2/sandboxes": f'curl {KEY} "$E2B_API_URL/v2/sandboxes?state=running&limit=10"',
    "GET /sandboxes/{id}": (SANDBOX, f"curl {KEY} $E2B_API_URL/sandboxes/$ID"),
    "POST /sandboxes/{id}/pause": f"curl -X POST {KEY} $E2B_API_URL/sandboxes/$ID/pause",
    "POST /sandboxes/{id}/resume": f"curl {KEY} {JSON} -d '{{\"timeout\": 600}}' $E2B_API_URL/sandboxes/$ID/resume",
    "POST /sandboxes/{id}/timeout": f"curl {KEY} {JSON} -d '{{\"timeout\": 3600}}' $E2B_API_URL/sandboxes/$ID/timeout",
    "PUT /sandboxes/{id}/network": f"curl -X PUT {KEY} {JSON} -d '{{\"denyOut\": [\"0.0.0.0/0\"]}}' $E2B_API_URL/sandboxes/$ID/network",
    "GET /ready": f"curl {KEY} $E2B_API_URL/ready",
    "GET /v2/templates": f"curl {KEY} $E2B_API_URL/v2/templates",
    "POST /volumes": f"curl {KEY} {JSON} -d '{{\"name\": \"cache\"}}' $E2B_API_URL/volumes",
    "POST /secrets": f"curl {KEY} {JSON} -d '{{\"name\": \"api-key\", \"value\": \"the value\"}}' $E2B_API_URL/secrets",
    "GET /sandbar/capabilities": f"curl {KEY} $E2B_API_URL/sandbar/capabilities",
    "POST /api/generation": f"curl {TOKEN} {JSON} -d '{{\"name\": \"Clock\", \"goal\": \"A clock\", \"model\": \"scripted:demo\"}}' $E2B_API_URL/api/generation",
    "GET /api/generation/{job_id}/status": (BUILD, f"curl {TOKEN} $E2B_API_URL/api/generation/$JOB/status"),
    "GET /api/jobs": f"curl {TOKEN} $E2B_API_URL/api/jobs",
    "GET /api/me": f"curl {TOKEN} $E2B_API_URL/api/me",
}


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


class Part:
    """One of the two documents."""

    def __init__(self, document: dict, taken: set[str]):
        self.schemas = document["components"]["schemas"]
        # Bodies whose fields stand on the page.
        self.shown: set[str] = set()
        # A name means one type on the page.
        self.titles = {name: f"{name} of the studio" if name in taken else name for name in self.schemas}
        self.calls = {f"{method.upper()} {path}": call for path, methods in document["paths"].items() for method, call in methods.items() if method in METHODS}

    def name(self, schema: dict | bool) -> str:
        """A type, as the cell of a table."""
        if not isinstance(schema, dict):
            return "any"
        if "$ref" in schema:
            title = self.titles[schema["$ref"].rsplit("/", 1)[1]]
            return f"[{title}](#{title.lower().replace(' ', '-')})"
        if choices := schema.get("anyOf") or schema.get("allOf"):
            return " or ".join(dict.fromkeys(self.name(choice) for choice in choices))
        if "const" in schema:
            return f"`{schema['const']}`"
        if choices := schema.get("oneOf"):
            return ", ".join(dict.fromkeys(self.name(choice) for choice in choices))
        if "enum" in schema:
            return ", ".join(f"`{choice}`" for choice in schema["enum"])
        kinds = schema.get("type", "any")
        if isinstance(kinds, list):
            return " or ".join(self.name(schema | {"type": kind}) for kind in kinds)
        if kinds == "array":
            return f"list of {self.name(schema.get('items', True))}"
        if kinds == "object" and isinstance(schema.get("additionalProperties"), dict):
            return f"map to {self.name(schema['additionalProperties'])}"
        if kinds == "string" and schema.get("format") == "date-time":
            return "time"
        return kinds

    def fields(self, schema: dict, sent: bool = False) -> list[str]:
        """The fields of a type as a table; nothing for one that has none. What clients send they leave out instead of sending null."""
        fields = schema.get("properties", {})
        if not fields:
            return []
        lines = ["| field | type | meaning |", "|---|---|---|"]
        for name, field in fields.items():
            field = field if isinstance(field, dict) else {}
            needed = ", required" if sent and name in schema.get("required", []) else ""
            kind = self.name(field or True)
            kind = kind.removesuffix(" or null") if sent else kind
            lines.append(f"| `{name}` | {cell(kind)}{needed} | {cell(field.get('description', ''))} |")
        return [*lines, ""]

    def resolve(self, schema: dict) -> dict:
        return self.schemas[schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema

    def content(self, content: dict) -> str:
        """What a body is, in the words of a table."""
        kinds = []
        for kind, media in content.items():
            if kind == "application/json":
                kinds.append(self.name(media.get("schema", True)))
            elif "x-item-schema" in media:
                kinds.append(f"events, each a {self.name(media['x-item-schema'])}")
            else:
                kinds.append(f"`{kind}`")
        return ", ".join(kinds)

    def call(self, title: str, hidden: set[str]) -> list[str]:
        """The section of one call. `hidden` are the statuses that the part's head explains."""
        call = self.calls[title]
        lines = [f"### `{title}`", "", f"{call['summary']}.", ""]
        if call.get("security") == []:
            lines += ["Needs no key.", ""]
        elif any("volume" in way for way in call.get("security", [])):
            lines += ["Takes `Authorization: Bearer TOKEN`, the token of the volume.", ""]
        if parameters := call.get("parameters"):
            lines += ["| parameter | in | meaning |", "|---|---|---|"]
            for parameter in parameters:
                meaning = parameter.get("description") or parameter["schema"].get("description") or self.limits(parameter["schema"])
                lines.append(f"| `{parameter['name']}` | {parameter['in']} | {cell(meaning)} |")
            lines.append("")
        if body := call.get("requestBody"):
            schema = body["content"].get("application/json", {}).get("schema", {})
            kind = self.content(body["content"])
            lines += [f"Body: {kind}{'' if body.get('required') else ', optional'}{', as above' if kind in self.shown else ''}.", ""]
            lines += [] if kind in self.shown else self.fields(self.resolve(schema), sent=True)
            self.shown.add(kind)
        lines += ["| status | meaning | body |", "|---|---|---|"]
        for status, response in sorted(call["responses"].items()):
            if status not in hidden or status.startswith("2"):
                lines.append(f"| {status} | {cell(response['description'])} | {cell(self.content(response.get('content', {})))} |")
        lines.append("")
        if example := EXAMPLES.get(title):
            setup, line = example if isinstance(example, tuple) else ("", example)
            lines += [f"{setup}```sh\n{line}\n```", ""]
        return lines

    def limits(self, schema: dict) -> str:
        """What a value without a description may be."""
        return f"`{schema['pattern']}`" if "pattern" in schema else ""

    def types(self) -> list[str]:
        """The types that calls refer to, by name."""
        lines = []
        for name, schema in sorted(self.schemas.items()):
            lines += [f"#### {self.titles[name]}", ""]
            if meaning := schema.get("description"):
                lines += [" ".join(meaning.split()), ""]
            if rows := self.fields(schema):
                lines += rows
            elif variants := [variant for variant in schema.get("oneOf", []) if "properties" in variant]:
                for variant in variants:
                    lines += [" ".join(variant.get("description", "One of these:").split()), "", *self.fields(variant)]
            elif choices := [choice for choice in schema.get("oneOf", []) if "const" in choice]:
                lines += [f"- `{choice['const']}`: {' '.join(choice.get('description', '').split())}".removesuffix(": ") for choice in choices] + [""]
            else:
                lines += [f"{self.name({key: value for key, value in schema.items() if key != 'description'})}.", ""]
        return lines


def newer_first(calls: list[str]) -> list[str]:
    """The calls in their order; of a call in two versions, the newer first."""

    def place(call: str) -> tuple[int, bool]:
        older = call.replace(" /v2/", " /")
        return calls.index(older if older in calls else call), call == older

    return sorted(calls, key=place)


def page() -> str:
    control, studio = (json.loads(path.read_text()) for path in (CONTROL, STUDIO))
    part = Part(control, set())
    lines = [HEAD]
    served = [(group["group"], [row[0] for row in group["rows"] if len(row) == 1]) for group in json.loads(ENDPOINTS.read_text()) if group["kind"] == "control"]
    additions = ["GET /ready", *(call for call in part.calls if "/sandbar/" in call)]
    named = {call for _, calls in served for call in calls}
    if difference := (named | set(additions)) ^ set(part.calls):
        sys.exit(f"the document and {ENDPOINTS.relative_to(ROOT)} differ in {sorted(difference)}; {CONTROL.relative_to(ROOT)} is written by its test")
    hidden = {"400", "401", "408", "501", "503", "507"}
    for group, calls in [*served, ("What Sandbar adds", additions)]:
        lines += [f"**{group}**", ""]
        for call in newer_first(calls):
            lines += part.call(call, hidden - set(part.calls[call]["responses"]))
    lines += ["### Types of the control plane", "", *part.types()]

    other = Part(studio, set(part.schemas))
    common: dict[str, str] = {}
    for call in other.calls.values():
        for status, response in call["responses"].items():
            if int(status) >= 400:
                common.setdefault(status, response["description"])
    rows = "\n".join(f"| {status} | {cell(text)} |" for status, text in sorted(common.items()))
    lines.append(STUDIO_HEAD.format(rows=rows).replace("(#error)", f"(#{other.titles['Error'].lower().replace(' ', '-')})"))
    for call in other.calls:
        # The head explains a status once; those of a call's own are named again.
        lines += other.call(call, set(common) - {"402", "409", "422"})
    lines += ["### Types of the studio", "", *other.types()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def main() -> None:
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(f"usage: {sys.argv[0]} [--check]")
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.exit(f"{PAGE.name} is not current; run: python3 docs/rest_reference.py")


if __name__ == "__main__":
    main()
