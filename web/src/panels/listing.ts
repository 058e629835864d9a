// A sorted directory listing, marked with the differences to another state. Snapshots exclude
// folders that a program can recreate (`node_modules`), so a folder that only the newer state has
// may not be new and is not marked. Files, and folders that only the older state has, are.

import type { Entry as FileEntry } from "../wire";

export type Mark = "added" | "removed";

export interface Listed {
  entry: FileEntry;
  /** Null for entries of both states, and without a comparison. */
  mark: Mark | null;
}

/**
 * The entries of `shown`, and those that only `other` has; null when there is nothing to compare
 * with.
 */
export function marked(shown: FileEntry[], other: FileEntry[] | null, otherIs: "older" | "newer"): Listed[] {
  const here = new Set(shown.map(identity));
  const there = other && new Set(other.map(identity));
  const [onlyHere, onlyThere]: readonly [Mark, Mark] = otherIs === "older" ? ["added", "removed"] : ["removed", "added"];
  const known = (entry: FileEntry, mark: Mark) => mark === "removed" || entry.kind !== "directory";
  const more = (other ?? []).filter((entry) => !here.has(identity(entry)) && known(entry, onlyThere));
  return [
    ...shown.map((entry) => ({ entry, mark: there && !there.has(identity(entry)) && known(entry, onlyHere) ? onlyHere : null })),
    ...more.map((entry) => ({ entry, mark: onlyThere })),
  ].sort((a, b) => inOrder(a.entry, b.entry));
}

/** The path of the first file in the list. */
export function firstFile(entries: FileEntry[]): string | null {
  return [...entries].sort(inOrder).find((entry) => entry.kind !== "directory")?.path ?? null;
}

/** A file and a directory with one name are two entries; a file and a link are read alike. */
export function identity({ kind, name }: FileEntry): string {
  return kind === "directory" ? `${name}/` : name;
}

function inOrder(a: FileEntry, b: FileEntry): number {
  return Number(b.kind === "directory") - Number(a.kind === "directory") || a.name.localeCompare(b.name);
}
