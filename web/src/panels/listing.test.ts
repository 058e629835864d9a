import assert from "node:assert/strict";
import { test } from "node:test";
import { firstFile, marked } from "./listing";
import type { Entry as FileEntry } from "../wire";

/** "name" is a file, "name/" a directory, "name=7" a file of seven bytes. */
function entries(...names: string[]): FileEntry[] {
  return names.map((each) => {
    const [name = "", size = "1"] = each.replace(/\/$/, "").split("=");
    return { name, path: name, kind: each.endsWith("/") ? "directory" : "file", bytes: Number(size) };
  });
}

const SIGN = { added: "+", removed: "-", none: "" };

function check(shown: FileEntry[], other: FileEntry[] | null, otherIs: "older" | "newer", expected: string[]) {
  const lines = marked(shown, other, otherIs).map(({ entry, mark }) => `${SIGN[mark ?? "none"]}${entry.name}${entry.kind === "directory" ? "/" : ""}`);
  assert.deepEqual(lines, expected);
}

test("directories come first, then files, each by name", () => {
  check(entries("b", "z/", "a", "y/"), null, "older", ["y/", "z/", "a", "b"]);
});

test("what only the newer has was added, what only the older has was removed, whichever is shown", () => {
  const [old, fresh] = [entries("kept", "gone"), entries("kept", "new")];
  check(fresh, old, "older", ["-gone", "kept", "+new"]);
  check(old, fresh, "newer", ["-gone", "kept", "+new"]);
});

test("a folder that is gone was removed; one that only the newer has may have been left out of the older", () => {
  const [old, fresh] = [entries("kept/", "gone/"), entries("kept/", "node_modules/")];
  check(fresh, old, "older", ["-gone/", "kept/", "node_modules/"]);
  check(old, fresh, "newer", ["-gone/", "kept/"]);
});

test("a file that became a folder was removed, and the other way round", () => {
  check(entries("a/"), entries("a"), "older", ["a/", "-a"]);
  check(entries("a"), entries("a/"), "older", ["-a/", "+a"]);
});

test("what both have is as it is shown", () => {
  assert.deepEqual(marked(entries("a=7"), entries("a=3"), "older"), [{ entry: entries("a=7")[0], mark: null }]);
});

test("without another side nothing is marked; an empty one is a side", () => {
  check(entries("a"), null, "older", ["a"]);
  check(entries("a"), [], "older", ["+a"]);
  check([], entries("a"), "older", ["-a"]);
});

test("the first file is the first that is listed and no folder", () => {
  assert.equal(firstFile(entries("b", "z/", "a")), "a");
  assert.equal(firstFile(entries("z/")), null);
  assert.equal(firstFile([]), null);
});
