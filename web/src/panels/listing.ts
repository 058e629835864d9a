// A directory as it is listed: in order, and with what another state of it has more or less.
// A snapshot leaves whole folders out that a program makes again (`node_modules`): of a folder that only the newer state has
// nobody can say that it is new, so that none is called so. Of a file, and of a folder that only the older one has, it is known.

import type { FileEntry } from "../wire";

export type Mark = "added" | "removed";

export interface Listed {
  entry: FileEntry;
  /** Null for what both have, and where nothing is compared. */
  mark: Mark | null;
}

/** What is `shown`, and what only the `other` state has; null when there is none to compare with. */
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

/** A file and a directory of one name are two things; a file and a link are read alike. */
export function identity({ kind, name }: FileEntry): string {
  return kind === "directory" ? `${name}/` : name;
}

function inOrder(a: FileEntry, b: FileEntry): number {
  return Number(b.kind === "directory") - Number(a.kind === "directory") || a.name.localeCompare(b.name);
}
