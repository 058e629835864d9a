import assert from "node:assert/strict";
import { test } from "node:test";
import { diff, type Diff } from "./diff";

const SIGN = { same: " ", added: "+", removed: "-" };
const text = (result: Diff) => result.hunks.flatMap((hunk) => hunk.lines.map((line) => SIGN[line.kind] + line.text));

/** Both texts, reassembled from a difference without skipped lines. */
function sides(result: Diff): [string[], string[]] {
  const lines = result.hunks.flatMap((hunk) => hunk.lines);
  return [
    lines.filter((line) => line.kind !== "added").map((line) => line.text),
    lines.filter((line) => line.kind !== "removed").map((line) => line.text),
  ];
}

test("equal texts have no hunks", () => {
  assert.deepEqual(diff("a\nb\n", "a\nb\n"), { hunks: [], added: 0, removed: 0, rest: 2 });
  assert.deepEqual(diff("", ""), { hunks: [], added: 0, removed: 0, rest: 0 });
});

test("a changed line stands between its neighbours", () => {
  assert.deepEqual(text(diff("a\nb\nc\n", "a\nB\nc\n")), [" a", "-b", "+B", " c"]);
});

test("new and removed files are whole", () => {
  assert.deepEqual(text(diff("", "a\nb\n")), ["+a", "+b"]);
  assert.deepEqual(text(diff("a\nb\n", "")), ["-a", "-b"]);
});

test("far changes are separate, with what lies between counted", () => {
  const lines = Array.from({ length: 40 }, (_, index) => `line ${index + 1}`);
  const after = lines.slice();
  after[4] = "five";
  after[30] = "thirty-one";
  const result = diff(lines.join("\n"), after.join("\n"));
  assert.deepEqual(result.hunks.map((hunk) => hunk.skipped), [1, 19]);
  assert.equal(result.rest, 6);
  assert.deepEqual([result.added, result.removed], [2, 2]);
  const first = result.hunks[0]!.lines[0]!;
  assert.deepEqual([first.before, first.after], [2, 2]);
});

test("any two texts come out of their difference", () => {
  let seed = 7;
  const random = (below: number) => (seed = (seed * 16807) % 2147483647) % below;
  for (let round = 0; round < 300; round++) {
    const make = () => Array.from({ length: random(9) }, () => "abc"[random(3)]!);
    const [a, b] = [make(), make()];
    const result = diff(a.join("\n"), b.join("\n"));
    if (result.rest || result.hunks.some((hunk) => hunk.skipped)) continue;
    assert.deepEqual(sides(result), [a, b]);
  }
});

test("texts with nothing in common are one replacement, soon", () => {
  const a = Array.from({ length: 3000 }, (_, index) => `a${index}`).join("\n");
  const b = Array.from({ length: 3000 }, (_, index) => `b${index}`).join("\n");
  const result = diff(a, b);
  assert.deepEqual([result.added, result.removed], [3000, 3000]);
});
