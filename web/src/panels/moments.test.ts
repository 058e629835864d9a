import assert from "node:assert/strict";
import { test } from "node:test";
import { moments } from "./moments";
import type { Screenshot } from "../wire";

function shot(id: string, device: "desktop" | "mobile", second: number): Screenshot {
  const taken_at = new Date(Date.UTC(2026, 0, 1, 10, 0, second)).toISOString();
  return { id, device, width: 1, height: 1, taken_at, reason: "", url: "" };
}

const ids = (shots: Screenshot[]) => moments(shots).map((group) => group.map((each) => each.id));

test("desktop and mobile of one moment stand together, the newest first", () => {
  assert.deepEqual(ids([shot("a", "desktop", 0), shot("b", "mobile", 1), shot("c", "desktop", 40), shot("d", "mobile", 41)]), [["d", "c"], ["b", "a"]]);
});

test("two of one device are two moments, however near", () => {
  assert.deepEqual(ids([shot("a", "desktop", 0), shot("b", "desktop", 1)]), [["b"], ["a"]]);
});

test("a single screenshot is a moment", () => {
  assert.deepEqual(ids([shot("a", "desktop", 0), shot("b", "mobile", 30)]), [["b"], ["a"]]);
  assert.deepEqual(ids([]), []);
});
