// The timeline as rows for people. One pure function from rows and event to rows.
//
// Invariants: replaying the recorded events gives the same rows as watching them live (deltas only
// fill a row that the recorded event then replaces); a tool call is one row from its start to its
// end; an unknown event is ignored.

import { bytes as size, modelName, moment, thousands } from "../format";
import type { EventImage, JobStatus, TimelineEvent } from "../wire";

export interface TimelineImage {
  url: string;
  device: string | null;
  width: number | null;
  height: number | null;
}

interface Common {
  /** Stable for the life of the row. */
  key: string;
  ts: string;
  turn: number | null;
  /** The cost of the model's turn, on the first row of the turn. */
  cost: number | null;
}

export type Row = Common &
  (
    | { kind: "text"; text: string; live: boolean }
    | { kind: "thinking"; text: string; live: boolean }
    | {
        kind: "tool";
        id: string;
        tool: string;
        args: unknown;
        state: "running" | "done" | "failed";
        output: string;
        summary: string;
        images: TimelineImage[];
        duration: number | null;
        truncated: boolean;
      }
    | { kind: "approval"; id: string; tool: string; args: unknown; answer: "open" | "allowed" | "denied"; reason: string | null }
    | { kind: "phase"; phase: number; of: number; goal: string; state: "running" | "done"; commit: string | null }
    | { kind: "images"; images: TimelineImage[]; reason: string | null }
    | { kind: "note"; mark: Mark; text: string; detail: string | null }
    | { kind: "end"; outcome: "completed" | "stopped"; text: string; detail: string; files: string[] }
  );

/** The kind of a note; the page has an icon for each. */
export type Mark =
  | "status" | "snapshot" | "rotation" | "move" | "sleep" | "wake" | "extend" | "commit" | "limit" | "credit" | "notice"
  | "retry" | "context" | "problem";

export interface Timeline {
  rows: Row[];
  turn: number | null;
  /** The newest turn whose message is recorded: later deltas of it are late. */
  recordedTurn: number;
  totalCost: number | null;
  context: { used: number; window: number } | null;
  /** The newest status of the job, if any. */
  status: { status: JobStatus; stage: string | null; paused: boolean; url: string | null; message: string | null } | null;
  seq: number;
}

export const EMPTY: Timeline = { rows: [], turn: null, recordedTurn: 0, totalCost: null, context: null, status: null, seq: 0 };

/** The beginning of a longer live output is dropped; the recorded result has the whole. */
const LIVE_OUTPUT = 32_000;

export function fold(timeline: Timeline, event: TimelineEvent): Timeline {
  const turn = event.turn ?? timeline.turn;
  const base: Timeline = event.seq === undefined ? timeline : { ...timeline, turn, seq: event.seq };
  const common: Common = {
    key: event.seq === undefined ? `live-${turn ?? 0}-${event.type}` : String(event.seq),
    ts: event.ts,
    turn: turn ?? null,
    cost: null,
  };
  const note = (mark: Mark, text: string, detail: string | null = null) => add(base, { ...common, kind: "note", mark, text, detail });

  switch (event.type) {
    case "run_started":
      return note("status", event.resumed ? "The run goes on where it was" : "The run has started", modelName(event.model));
    case "text_delta":
      return late(base, turn) ? base : stream(base, common, "text", event.text);
    case "thinking_delta":
      return late(base, turn) ? base : stream(base, common, "thinking", event.text);
    case "message": {
      const rows = settle(base.rows);
      const known = spoken(base, turn);
      const last = rows.at(-1);
      const row: Row = { ...common, kind: "text", text: event.text, live: false };
      // The live row becomes the recorded one and keeps its key, so that nothing on the page jumps.
      if (last?.kind === "text" && last.key.startsWith("live-")) {
        return { ...known, rows: [...rows.slice(0, -1), { ...row, key: last.key + "-" + common.key, cost: last.cost }] };
      }
      return { ...known, rows: event.text.trim() ? [...rows, row] : rows };
    }
    case "tool_call_started":
      return add(spoken(base, turn), {
        ...common, kind: "tool", id: event.id, tool: event.tool, args: event.args, state: "running", output: "", summary: "",
        images: [], duration: null, truncated: false,
      });
    case "tool_output_delta":
      return change(base, "tool", event.id, (row) =>
        row.state === "running" ? { ...row, output: (row.output + event.chunk).slice(-LIVE_OUTPUT) } : row,
      );
    case "tool_call_finished":
      return change(base, "tool", event.id, (row) => ({
        ...row,
        state: event.is_error ? "failed" : "done",
        output: event.output ?? row.output,
        summary: event.summary,
        images: (event.images ?? []).map(image),
        duration: event.duration_ms,
        truncated: event.truncated,
      }));
    case "approval_asked":
      return add(base, {
        ...common, kind: "approval", id: event.id, tool: event.tool, args: event.args, answer: "open", reason: null,
      });
    case "approval_answered":
      return change(base, "approval", event.id, (row) => ({
        ...row, answer: event.allowed ? "allowed" : "denied", reason: event.reason ?? null,
      }));
    case "phase_started":
      return add(base, {
        ...common, kind: "phase", phase: event.phase, of: event.of, goal: event.goal, state: "running", commit: null,
      });
    case "phase_finished":
      return {
        ...base,
        rows: base.rows.map((row) =>
          row.kind === "phase" && row.phase === event.phase && row.state === "running"
            ? { ...row, state: "done" as const, commit: event.commit }
            : row,
        ),
      };
    case "phase_committed":
      return note("commit", event.message ?? "Work committed", short(event.commit));
    case "screenshots":
      return add(base, { ...common, kind: "images", images: event.images.map(image), reason: event.reason });
    case "snapshot_saved":
      return note("snapshot", "Files saved", `${event.files} ${event.files === 1 ? "file" : "files"}, ${size(event.bytes)}`);
    case "restored":
      return note("snapshot", "Back to an earlier snapshot", moment(event.saved_at));
    case "saved":
      return event.problem ? note("problem", "Files could not be saved", event.problem) : base;
    case "rotated":
      return note("rotation", "Moved to a fresh sandbox", event.reason);
    case "moved":
      return note("move", `Moved from ${event.from_provider} to ${event.to_provider}`, event.reason);
    case "paused":
      // Pauses by the run, which have a `problem` field, and automatic ones of the studio have no
      // row unless they failed.
      if (!("problem" in event)) return event.automatic ? base : note("sleep", "Preview asleep");
      return event.problem ? note("problem", "The preview could not be put to sleep", event.problem) : base;
    case "resumed":
      // A resume of a running preview shows that it responds, and so does a restore.
      return note("wake", base.status?.paused === false ? "The preview answers" : "Preview awake again");
    case "extended":
      return note("extend", "Time extended");
    case "limit_warning":
      return note("limit", `${Math.round(event.percent)} % of ${event.what} used`);
    case "credit":
      // The credit of the build itself needs no explanation.
      return note("credit", credit(event.change), `${event.reason && event.change > 0 ? event.reason + " · " : ""}${event.balance} left`);
    case "notice":
      return note("notice", event.text);
    case "nudge":
      return note("notice", "Reminder to the model", event.text);
    case "retry":
      return note("retry", `The model did not answer, trying again (${event.attempt})`, event.reason);
    case "pruned":
      return note("context", "Old results removed to make room", `${event.results} results`);
    case "compacted":
      return note("context", "Conversation condensed", `${thousands(event.before)} to ${thousands(event.after)} tokens`);
    case "background_exited":
      return note("status", `Background task ended with code ${event.exit_code}`, event.task_id);
    case "cost":
      return { ...base, totalCost: event.total_usd };
    case "usage":
      return usage(base, event);
    case "job_status":
      return status(base, common, event);
    case "run_finished":
      return add(
        { ...base, totalCost: event.cost_usd ?? base.totalCost },
        {
          ...common,
          kind: "end",
          outcome: event.stop_reason === "completed" ? "completed" : "stopped",
          text: event.stop_reason === "completed" ? "The model has finished" : "The run has stopped",
          // The user who cancelled knows why; and unlike a run in a terminal it cannot be
          // continued.
          detail: event.stop_reason === "cancelled" ? "" : event.message,
          files: event.files_changed ?? [],
        },
      );
    case "turn_started":
      // A turn that is repeated after a crash comes before its recorded message again.
      return turn !== null && turn <= base.recordedTurn ? { ...base, recordedTurn: turn - 1 } : base;
    case "observed":
    case "deleted":
      return base;
    default:
      return base;
  }
}

function add(timeline: Timeline, row: Row): Timeline {
  return { ...timeline, rows: [...settle(timeline.rows), row] };
}

/** The text before any new row is complete. */
function settle(rows: Row[]): Row[] {
  const last = rows.at(-1);
  if (last && (last.kind === "text" || last.kind === "thinking") && last.live) return [...rows.slice(0, -1), { ...last, live: false }];
  return rows;
}

function spoken(timeline: Timeline, turn: number | null): Timeline {
  return { ...timeline, recordedTurn: Math.max(timeline.recordedTurn, turn ?? 0) };
}

/** Deltas bypass the records and may arrive after the recorded event. */
function late(timeline: Timeline, turn: number | null): boolean {
  return turn !== null && turn <= timeline.recordedTurn;
}

function stream(timeline: Timeline, common: Common, kind: "text" | "thinking", text: string): Timeline {
  const rows = timeline.rows;
  const last = rows.at(-1);
  if (last?.kind === kind && last.live) {
    return { ...timeline, rows: [...rows.slice(0, -1), { ...last, text: last.text + text }] };
  }
  return { ...timeline, rows: [...settle(rows), { ...common, key: `${common.key}-${rows.length}`, kind, text, live: true }] };
}

function change<Kind extends "tool" | "approval">(
  timeline: Timeline,
  kind: Kind,
  id: string,
  update: (row: Extract<Row, { kind: Kind }>) => Row,
): Timeline {
  const index = timeline.rows.findLastIndex((row) => row.kind === kind && "id" in row && row.id === id);
  if (index < 0) return timeline;
  const rows = timeline.rows.slice();
  rows[index] = update(rows[index] as Extract<Row, { kind: Kind }>);
  return { ...timeline, rows };
}

function usage(timeline: Timeline, event: Extract<TimelineEvent, { type: "usage" }>): Timeline {
  const turn = event.turn ?? timeline.turn;
  const first = timeline.rows.findIndex((row) => row.turn === turn && (row.kind === "text" || row.kind === "tool" || row.kind === "thinking"));
  const rows = timeline.rows.slice();
  const row = rows[first];
  if (row && event.cost_usd != null) rows[first] = { ...row, cost: event.cost_usd };
  return {
    ...timeline,
    rows,
    totalCost: event.total_cost_usd ?? timeline.totalCost,
    context: event.context_window > 0 ? { used: event.context_tokens, window: event.context_window } : timeline.context,
  };
}

const STATUS_TEXT: Record<JobStatus, string> = {
  queued: "Waiting for its turn",
  provisioning: "Preparing a sandbox",
  building: "Building",
  ready: "Ready",
  failed: "Failed",
  cancelled: "Cancelled",
};

function status(timeline: Timeline, common: Common, event: Extract<TimelineEvent, { type: "job_status" }>): Timeline {
  const before = timeline.status;
  const after = {
    status: event.status, stage: event.stage_label, paused: event.sandbox_paused, url: event.preview_url, message: event.message ?? null,
  };
  const known = { ...timeline, status: after };
  const row = (mark: Mark, text: string, detail: string | null) => add(known, { ...common, kind: "note", mark, text, detail });
  if (event.status === "ready" && before?.status === "ready") {
    // A ready job has another operation in progress. Its end has an event of its own, unless it
    // failed.
    if (event.message) return row("problem", event.message, null);
    return event.stage_label && event.stage_label !== before.stage && event.stage_label !== STATUS_TEXT.ready
      ? row("status", event.stage_label, null)
      : known;
  }
  if (before && before.status === event.status && before.stage === event.stage_label && !event.message) return known;
  const text = event.status === "building" && event.stage_label ? event.stage_label : STATUS_TEXT[event.status];
  return row(event.status === "failed" ? "problem" : "status", text, event.message ?? null);
}

function image(image: string | EventImage): TimelineImage {
  if (typeof image === "string") return { url: image, device: null, width: null, height: null };
  return image;
}

function credit(change: number): string {
  const count = Math.abs(change);
  return `${count} build ${count === 1 ? "credit" : "credits"} ${change < 0 ? "used" : "given back"}`;
}

const short = (commit: string) => commit.slice(0, 8);
