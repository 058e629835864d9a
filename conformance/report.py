"""Turns outcomes into the compatibility table."""

import json
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
PASSED, ABSENT, FAILED = "✓", "–", "✗"


def load_rows() -> dict[str, list[dict]]:
    return json.loads((HERE / "calls.json").read_text())


def row_ids(kind: str) -> list[str]:
    return [row["id"] for group in load_rows()[kind] for row in group["rows"]]


@dataclass
class Results:
    """What one column's scenarios gave."""

    title: str
    kind: str
    pinned: bool = True
    outcomes: list[dict] = field(default_factory=list)
    broken: str = ""

    def count(self, outcome: str) -> int:
        return sum(1 for one in self.outcomes if one["outcome"] == outcome)

    @property
    def failures(self) -> list[dict]:
        return [one for one in self.outcomes if one["outcome"] == "failed"]

    def cell(self, row: str) -> tuple[str, str]:
        """The mark of a row, and the reason when it failed. A row that no scenario touched is a failure of ours."""
        touched = [one for one in self.outcomes if row in one["rows"]]
        failed = [one for one in touched if one["outcome"] == "failed"]
        if failed:
            return FAILED, "; ".join(f"{one['scenario']}: {one['reason']}" for one in failed)
        kinds = {one["outcome"] for one in touched}
        if "passed" in kinds:
            return PASSED, ""
        if "absent" in kinds:
            return ABSENT, ""
        return FAILED, self.broken or "no scenario proves this"


def unknown_rows(results: list[Results]) -> list[str]:
    """Rows that scenarios name and the table does not have."""
    known = {kind: set(row_ids(kind)) for kind in ("sdk", "http")}
    return sorted({row for r in results for one in r.outcomes for row in one["rows"] if row not in known[r.kind]})


def table(results: list[Results]) -> str:
    """The document: only versions and marks, so that two runs of the same state give the same text."""
    rows = load_rows()
    sdk = [r for r in results if r.kind == "sdk"]
    http = [r for r in results if r.kind == "http"]
    lines = [
        "# Compatibility with the official E2B SDKs",
        "",
        "Written by `./dev conformance`; do not edit. Each mark is the outcome of scenarios (`conformance/`) run through the",
        "unmodified official packages against a Sandbar server. Calls are named as in Python; JavaScript spells them in camel case.",
        "",
        f"{PASSED} works as the SDK expects · {ABSENT} this SDK version has no such call · {FAILED} fails, see below",
        "",
    ]
    notes: list[str] = []
    for group in rows["sdk"]:
        lines += _group(group, sdk, notes)
    for group in rows["http"]:
        lines += _group(group, http, notes)
    lines += _endpoints()
    if notes:
        lines += ["## Failures", "", *notes, ""]
    return "\n".join(lines).rstrip() + "\n"


def _group(group: dict, results: list[Results], notes: list[str]) -> list[str]:
    if not results:
        return []
    lines = [f"## {group['group']}", "", "| call | " + " | ".join(r.title for r in results) + " |"]
    lines.append("|---" * (len(results) + 1) + "|")
    for row in group["rows"]:
        marks = []
        for result in results:
            mark, reason = result.cell(row["id"])
            marks.append(mark)
            if mark == FAILED:
                notes.append(f"- {result.title}, {row['text']}: {_plain(reason)}")
        lines.append(f"| {row['text']} | " + " | ".join(marks) + " |")
    return [*lines, ""]


def _endpoints() -> list[str]:
    """Every call of the protocol; a scenario asks each and fails when it stands otherwise."""
    lines = ["## Every endpoint", ""]
    for group in json.loads((HERE / "endpoints.json").read_text()):
        lines += [f"### {group['group']}", "", "| call | served |", "|---|---|"]
        for call, *standing in group["rows"]:
            lines.append(f"| `{call.removeprefix('stream ')}` | {': '.join(standing) or 'yes'} |")
        lines.append("")
    return lines


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:400]
