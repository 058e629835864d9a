import assert from "node:assert/strict";
import { test } from "node:test";
import { age, bytes, duration, modelName, money, quantity, thousands, unit } from "./format";

function check<In>(format: (value: In) => string, ...pairs: [In, string][]): void {
  for (const [value, text] of pairs) assert.equal(format(value), text);
}

test("figures as people read them", () => {
  check(money, [null, "–"], [0, "$0.00"], [0.004, "<$0.01"], [1.239, "$1.24"]);
  check(bytes, [0, "0 B"], [1023, "1023 B"], [2048, "2.0 kB"], [5 * 1024 ** 2, "5.0 MB"]);
  check(thousands, [999, "999"], [1200, "1.2k"], [38_400, "38k"], [2_100_000, "2.1M"]);
  check(quantity, [0, "0"], [0.0001, "<0.01"], [3.456, "3.46"], [48_211, "48k"]);
  check((value: number) => unit(value, "sandboxes"), [0, "sandboxes"], [1, "sandbox"], [2, "sandboxes"]);
  check((value: number) => unit(value, "minutes"), [0.93, "minutes"], [1.001, "minute"]);
  check(duration, [12.4, "12 ms"], [4210, "4.2 s"], [65_000, "1 min 5 s"]);
  check(modelName, ["scripted:/a/b/clock.yaml", "scripted:clock.yaml"], ["claude-sonnet-4-5", "claude-sonnet-4-5"]);
});

test("ages in the largest unit that fits", () => {
  const now = Date.parse("2026-01-10T12:00:00Z");
  check(
    (then: string) => age(then, now),
    ["2026-01-10T11:59:55Z", "just now"], ["2026-01-10T11:59:20Z", "40 s ago"], ["2026-01-10T11:30:00Z", "30 min ago"],
    ["2026-01-10T09:00:00Z", "3 h ago"], ["2026-01-09T11:00:00Z", "yesterday"], ["2026-01-05T12:00:00Z", "5 days ago"],
    ["2026-01-10T12:00:30Z", "just now"],
  );
});
