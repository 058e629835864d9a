// The difference of two texts by lines: Myers' shortest edit script, with a fallback for texts that
// have little in common.

export interface Line {
  kind: "same" | "added" | "removed";
  text: string;
  /** Line numbers from 1; null on the side without the line. */
  before: number | null;
  after: number | null;
}

/** Changed lines with context; `skipped` unchanged lines precede them. */
export interface Hunk {
  skipped: number;
  lines: Line[];
}

export interface Diff {
  hunks: Hunk[];
  added: number;
  removed: number;
  /** Lines after the last hunk. */
  rest: number;
}

/**
 * More edits are shown as one replacement: time and memory of the search grow with their square.
 */
const MOST_EDITS = 2_000;
const CONTEXT = 3;

export function diff(before: string, after: string): Diff {
  const lines = number(script(split(before), split(after)));
  return {
    ...cut(lines),
    added: lines.filter((line) => line.kind === "added").length,
    removed: lines.filter((line) => line.kind === "removed").length,
  };
}

/** Without the empty string after a final newline. */
function split(text: string): string[] {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

type Edit = Pick<Line, "kind" | "text">;

function script(a: string[], b: string[]): Edit[] {
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const same = (lines: string[]): Edit[] => lines.map((text) => ({ kind: "same", text }));
  return [
    ...same(a.slice(0, start)),
    ...middle(a.slice(start, a.length - end), b.slice(start, b.length - end)),
    ...same(a.slice(a.length - end)),
  ];
}

function middle(a: string[], b: string[]): Edit[] {
  const all = (lines: string[], kind: "added" | "removed"): Edit[] => lines.map((text) => ({ kind, text }));
  if (!a.length || !b.length) return [...all(a, "removed"), ...all(b, "added")];
  const most = Math.min(a.length + b.length, MOST_EDITS);
  const furthest = new Map<number, number>([[1, 0]]);
  const trace: Map<number, number>[] = [];
  for (let edits = 0; edits <= most; edits++) {
    trace.push(new Map(furthest));
    for (let k = -edits; k <= edits; k += 2) {
      let x = down(furthest, k, edits) ? (furthest.get(k + 1) ?? 0) : (furthest.get(k - 1) ?? 0) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      furthest.set(k, x);
      if (x >= a.length && x - k >= b.length) return walkBack(a, b, trace);
    }
  }
  return [...all(a, "removed"), ...all(b, "added")];
}

function down(furthest: Map<number, number>, k: number, edits: number): boolean {
  return k === -edits || (k !== edits && (furthest.get(k - 1) ?? -1) < (furthest.get(k + 1) ?? -1));
}

function walkBack(a: string[], b: string[], trace: Map<number, number>[]): Edit[] {
  const edits: Edit[] = [];
  let x = a.length;
  let y = b.length;
  for (let step = trace.length - 1; step >= 0; step--) {
    const furthest = trace[step]!;
    const k = x - y;
    const from = down(furthest, k, step) ? k + 1 : k - 1;
    const fromX = furthest.get(from) ?? 0;
    const fromY = fromX - from;
    while (x > fromX && y > fromY && x > 0 && y > 0) {
      edits.push({ kind: "same", text: a[x - 1]! });
      x--;
      y--;
    }
    if (step === 0) break;
    if (x === fromX) edits.push({ kind: "added", text: b[--y]! });
    else edits.push({ kind: "removed", text: a[--x]! });
  }
  return edits.reverse();
}

function number(edits: Edit[]): Line[] {
  let before = 0;
  let after = 0;
  return edits.map((edit) => ({
    ...edit,
    before: edit.kind === "added" ? null : ++before,
    after: edit.kind === "removed" ? null : ++after,
  }));
}

function cut(lines: Line[]): Pick<Diff, "hunks" | "rest"> {
  const hunks: Hunk[] = [];
  let shown = 0;
  for (let index = 0; index < lines.length; index++) {
    if (lines[index]!.kind === "same") continue;
    const start = Math.max(shown, index - CONTEXT);
    let last = index;
    for (let probe = index; probe < lines.length && probe - last <= 2 * CONTEXT; probe++) {
      if (lines[probe]!.kind !== "same") last = probe;
    }
    const end = Math.min(lines.length, last + CONTEXT + 1);
    hunks.push({ skipped: start - shown, lines: lines.slice(start, end) });
    shown = end;
    index = end - 1;
  }
  return { hunks, rest: lines.length - shown };
}
