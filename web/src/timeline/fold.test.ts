import assert from "node:assert/strict";
import { test } from "node:test";
import { EMPTY, fold, type Row, type Timeline } from "./fold";
import type { TimelineEvent } from "../wire";

const TS = "2026-01-01T10:00:00Z";

/** Numbers recorded events and leaves deltas without a number. */
function play(...events: Record<string, unknown>[]): Timeline {
  let seq = 0;
  return events
    .map((event) => {
      const delta = String(event["type"]).endsWith("_delta");
      return { ts: TS, turn: 1, ...(delta ? {} : { seq: ++seq }), ...event } as unknown as TimelineEvent;
    })
    .reduce(fold, EMPTY);
}

const kinds = (timeline: Timeline) => timeline.rows.map((row) => row.kind);
const started = { type: "tool_call_started", id: "c1", tool: "bash", args: { command: "ls" } };
const finished = {
  type: "tool_call_finished", id: "c1", tool: "bash", is_error: false, code: null, duration_ms: 20, truncated: false,
  summary: "2 lines", output: "a\nb", images: ["/api/p.webp"],
};

function tool(timeline: Timeline): Extract<Row, { kind: "tool" }> {
  const row = timeline.rows.find((each) => each.kind === "tool");
  assert.ok(row);
  return row;
}

test("text grows while it is written and is replaced by what was recorded", () => {
  const live = play({ type: "text_delta", text: "Hel" }, { type: "text_delta", text: "lo" });
  assert.deepEqual(live.rows.map((row) => row.kind === "text" && [row.text, row.live]), [["Hello", true]]);
  const done = play({ type: "text_delta", text: "Hel" }, { type: "message", text: "Hello." });
  assert.deepEqual(done.rows.map((row) => row.kind === "text" && [row.text, row.live]), [["Hello.", false]]);
});

test("late deltas of a recorded message are dropped", () => {
  const timeline = play(
    { type: "turn_started" }, { type: "message", text: "Hello." }, started, { type: "text_delta", text: "Hello." }, finished,
    { type: "tool_output_delta", id: "c1", stream: "stdout", chunk: "late" },
    { type: "turn_started", turn: 2 }, { type: "text_delta", text: "Next", turn: 2 },
  );
  assert.deepEqual(kinds(timeline), ["text", "tool", "text"]);
  assert.equal(tool(timeline).output, "a\nb");
});

test("a repeated turn is shown again", () => {
  const timeline = play(
    { type: "turn_started" }, { type: "message", text: "One." }, { type: "turn_started" }, { type: "text_delta", text: "One again" },
  );
  assert.deepEqual(timeline.rows.map((row) => row.kind === "text" && row.text), ["One.", "One again"]);
});

test("a replay gives the rows that were watched", () => {
  const strip = (timeline: Timeline) => timeline.rows.map(({ key: _, ...row }) => row);
  const watched = play(
    { type: "text_delta", text: "I " }, { type: "message", text: "I look." }, started,
    { type: "tool_output_delta", id: "c1", stream: "stdout", chunk: "a" }, finished,
  );
  assert.deepEqual(strip(watched), strip(play({ type: "message", text: "I look." }, started, finished)));
});

test("a tool call is one row from start to end", () => {
  assert.equal(tool(play(started)).state, "running");
  const row = tool(play(started, { type: "tool_output_delta", id: "c1", stream: "stdout", chunk: "a" }, finished));
  assert.deepEqual([row.state, row.output, row.duration, row.images.length], ["done", "a\nb", 20, 1]);
  assert.equal(tool(play(started, { ...finished, is_error: true })).state, "failed");
});

test("a call continued after a restart is matched by its id", () => {
  const timeline = play(started, { type: "run_started", run_id: "r", goal: "g", model: "m", resumed: true }, finished);
  assert.deepEqual(kinds(timeline), ["tool", "note"]);
  assert.equal(tool(timeline).state, "done");
});

test("a question is open until it is answered", () => {
  const asked = { type: "approval_asked", id: "q", tool: "bash", args: {} };
  const open = play(asked).rows[0]!;
  assert.ok(open.kind === "approval" && open.answer === "open");
  const denied = play(asked, { type: "approval_answered", id: "q", allowed: false, reason: "no" }).rows[0]!;
  assert.ok(denied.kind === "approval" && denied.answer === "denied" && denied.reason === "no");
});

test("money: each turn on its first row, the sum for the head", () => {
  const usage = {
    type: "usage", input_tokens: 1, output_tokens: 1, cache_read_tokens: 0, cache_write_tokens: 0, cost_usd: 0.5,
    total_cost_usd: 2, context_tokens: 10, context_window: 100,
  };
  const timeline = play({ type: "message", text: "x" }, started, usage);
  assert.deepEqual(timeline.rows.map((row) => row.cost), [0.5, null]);
  assert.equal(timeline.totalCost, 2);
  assert.deepEqual(timeline.context, { used: 10, window: 100 });
  assert.equal(play({ type: "cost", total_usd: 3 }).totalCost, 3);
});

test("phases end where they began", () => {
  const phase = play({ type: "phase_started", phase: 1, of: 2, goal: "g" }, { type: "phase_finished", phase: 1, commit: "abc", snapshot: null })
    .rows[0]!;
  assert.ok(phase.kind === "phase" && phase.state === "done" && phase.commit === "abc");
});

test("a status is noted once, and the newest is known", () => {
  const building = { type: "job_status", status: "building", stage_label: "Writing", sandbox_paused: false, preview_url: null };
  const timeline = play(building, building, { ...building, status: "ready", stage_label: "Ready", sandbox_paused: true });
  assert.deepEqual(kinds(timeline), ["note", "note"]);
  assert.deepEqual([timeline.status?.status, timeline.status?.paused], ["ready", true]);
});

test("a restore has its own row and no second ready row", () => {
  const ready = { type: "job_status", status: "ready", stage_label: "Ready", sandbox_paused: false, preview_url: null };
  const begun = [ready, { ...ready, sandbox_paused: true }, { ...ready, stage_label: "Restoring the files" }];
  const texts = (...events: Record<string, unknown>[]) =>
    play(...begun, ...events).rows.map((row) => (row.kind === "note" ? `${row.mark}: ${row.text}` : row.kind));
  assert.deepEqual(
    texts({ type: "restored", stamp: "s", saved_at: TS }, { type: "resumed", preview_url: null }, ready),
    ["status: Ready", "status: Restoring the files", "snapshot: Back to an earlier snapshot", "wake: The preview answers"],
  );
  assert.deepEqual(
    texts({ ...ready, message: "The snapshot could not be restored: it is damaged" }),
    ["status: Ready", "status: Restoring the files", "problem: The snapshot could not be restored: it is damaged"],
  );
});

test("what the studio adds has a row each", () => {
  const timeline = play(
    { type: "snapshot_saved", key: "k", files: 3, bytes: 2048 }, { type: "rotated", from: "a", to: "b", reason: "r" },
    { type: "moved", from_provider: "local", to_provider: "e2b", reason: "r" }, { type: "paused" }, { type: "resumed", preview_url: null },
    { type: "limit_warning", what: "budget", percent: 80 }, { type: "credit", change: -1, balance: 9, reason: "" },
    { type: "screenshots", images: [{ url: "/x", device: "mobile", width: 1, height: 2 }], reason: "ready" },
  );
  assert.deepEqual(kinds(timeline), ["note", "note", "note", "note", "note", "note", "note", "images"]);
  assert.deepEqual(
    timeline.rows.flatMap((row) => (row.kind === "note" ? [row.mark] : [])),
    ["snapshot", "rotation", "move", "sleep", "wake", "limit", "credit"],
  );
});

test("an automatic pause has no row unless it failed", () => {
  const marks = (...events: Record<string, unknown>[]) => play(...events).rows.map((row) => (row.kind === "note" ? row.mark : row.kind));
  assert.deepEqual(marks({ type: "paused", automatic: true }, { type: "paused", problem: null }), []);
  assert.deepEqual(marks({ type: "paused", automatic: false }), ["sleep"]);
  assert.deepEqual(marks({ type: "paused", problem: "no answer" }), ["problem"]);
});

test("an event of a newer server is left out", () => {
  assert.deepEqual(play({ type: "something_new" }).rows, []);
});

test("keys are unique", () => {
  const timeline = play(
    { type: "text_delta", text: "a" }, { type: "message", text: "a" }, started, finished,
    { type: "text_delta", text: "b", turn: 2 }, { type: "message", text: "b", turn: 2 },
    { type: "thinking_delta", text: "c", turn: 3 }, { type: "text_delta", text: "d", turn: 3 },
  );
  assert.equal(new Set(timeline.rows.map((row) => row.key)).size, timeline.rows.length);
});
