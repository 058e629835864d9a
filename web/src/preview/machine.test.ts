import assert from "node:assert/strict";
import { test } from "node:test";
import { FIRST, TEXT, next, type PreviewEvent, type Preview } from "./machine";
import type { JobStatus, Preview as PreviewCheck, PreviewStateView as PreviewState } from "../wire";

const URL_A = "http://3000-a.localhost";
const URL_B = "http://3000-b.localhost";
const PREVIEW_STATES: readonly PreviewState[] = ["starting", "active", "blocked", "paused", "expired", "unreachable", "none"];

function checked(state: PreviewState, url: string | null = null, status: JobStatus = "ready", reason: string | null = null): PreviewEvent {
  const check: PreviewCheck = { state, preview_url: url, reason };
  return { type: "checked", check, status };
}

const run = (start: Preview, ...events: PreviewEvent[]) => events.reduce(next, start);
const active = (): Preview => run(FIRST, checked("active", URL_A), { type: "frame_loaded", load: 1 });
/** A ready build whose sandbox runs and whose application does not respond. */
const unanswered = (): Preview => next(FIRST, checked("starting"));
const silent = (): Preview => next(unanswered(), { type: "start_late" });
/** A restore in progress: the build is ready, and the check has a reason. */
const restoring = checked("starting", null, "ready", "Restoring the files");
const resuming = (): Preview => run(FIRST, checked("paused"), { type: "resume" });

test("a preview that runs is loaded, then active", () => {
  const loading = next(FIRST, checked("active", URL_A));
  assert.deepEqual(loading, { kind: "loading", url: URL_A, load: 1 });
  assert.deepEqual(next(loading, { type: "frame_loaded", load: 1 }), { kind: "active", url: URL_A, load: 1, paused: false, offered: false });
});

test("an event of an earlier frame is ignored", () => {
  const second = run(active(), checked("active", URL_B));
  assert.deepEqual(second, { kind: "loading", url: URL_B, load: 2 });
  assert.equal(next(second, { type: "frame_loaded", load: 1 }), second);
  assert.equal(next(second, { type: "frame_late", load: 1 }), second);
});

test("a loaded frame is not touched when its sandbox is paused", () => {
  const paused = next(active(), checked("paused"));
  assert.deepEqual(paused, { kind: "active", url: URL_A, load: 1, paused: true, offered: false });
  assert.deepEqual(next(paused, checked("paused")), paused);
  assert.deepEqual(next(paused, checked("active", URL_A)), active());
});

test("a resume is offered beside the frame once the person turns to it, or it has loaded another page", () => {
  const paused = next(active(), checked("paused"));
  for (const event of [{ type: "touched" }, { type: "frame_loaded", load: 1 }] as const) {
    const offered = next(paused, event);
    assert.deepEqual(offered, { kind: "active", url: URL_A, load: 1, paused: true, offered: true });
    assert.deepEqual(next(offered, checked("paused")), offered);
    assert.deepEqual(next(offered, checked("active", URL_A)), active());
    assert.equal(next(active(), event).kind, "active");
    assert.deepEqual(next(active(), event), active(), "there is nothing to resume");
  }
  assert.deepEqual(next({ kind: "paused" }, { type: "touched" }), { kind: "paused" });
});

test("a page opened on a paused preview shows it paused", () => {
  assert.deepEqual(next(FIRST, checked("paused")), { kind: "paused" });
  assert.deepEqual(next({ kind: "blocked", url: URL_A }, checked("paused")), { kind: "paused" });
});

test("resuming ends in a fresh frame", () => {
  assert.deepEqual(resuming(), { kind: "resuming" });
  assert.deepEqual(next(resuming(), { type: "resumed", url: URL_B }), { kind: "loading", url: URL_B, load: 1 });
});

test("a resume without a page is explained", () => {
  const state = next(resuming(), { type: "resumed", url: null });
  assert.deepEqual(state, { kind: "error", message: TEXT.none, next: "nothing" });
});

test("a frame with a paused sandbox can be resumed", () => {
  const state = run(active(), checked("paused"), { type: "resume" }, { type: "resumed", url: URL_A });
  assert.equal(state.kind, "loading");
});

test("while it resumes, nothing but its own end moves the pane", () => {
  const others: PreviewEvent[] = [
    { type: "check" },
    { type: "resume" },
    { type: "check_failed", message: "x" },
    { type: "frame_loaded", load: 1 },
    { type: "frame_late", load: 1 },
    { type: "touched" },
    { type: "start_late" },
    ...PREVIEW_STATES.map((state) => checked(state, URL_A)),
  ];
  for (const event of others) assert.deepEqual(next(resuming(), event), { kind: "resuming" }, JSON.stringify(event));
});

test("each failure of a resume has its own words", () => {
  for (const failure of ["sandbox_expired", "sandbox_unreachable"] as const) {
    const failed = next(resuming(), { type: "resume_refused", failure });
    assert.deepEqual(failed, { kind: "resume_failed", failure });
    // A known state stays on the screen: a later check does not replace it with a card that says
    // less, or with a spinner.
    for (const status of ["ready", "building"] as const) {
      for (const seen of ["starting", "paused", "expired", "unreachable", "none"] as const) {
        assert.equal(next(failed, checked(seen, null, status)), failed, `${seen}, ${status}`);
      }
    }
  }
  assert.equal(TEXT.resumeFailed, "Resume failed");
  assert.equal(TEXT.sandbox_expired, "The sandbox has expired and can't be recovered.");
  assert.equal(TEXT.sandbox_unreachable, "The sandbox couldn't be reached. It may be corrupted.");
});

test("a failed resume gives way to a preview that runs", () => {
  const failed = next(resuming(), { type: "resume_refused", failure: "sandbox_unreachable" });
  assert.deepEqual(next(failed, checked("active", URL_B)), { kind: "loading", url: URL_B, load: 1 });
  assert.deepEqual(next(failed, checked("blocked", URL_B)), { kind: "blocked", url: URL_B });
});

test("a lost connection during a resume can be tried again", () => {
  const lost = next(resuming(), { type: "resume_lost", message: "gone" });
  assert.deepEqual(lost, { kind: "error", message: "gone", next: "retry" });
  assert.deepEqual(next(lost, { type: "check" }), FIRST);
});

test("what the server says against a resume can be read, and the resume be tried again", () => {
  const denied = next(resuming(), { type: "resume_denied", message: "Too many requests." });
  assert.deepEqual(denied, { kind: "error", message: "Too many requests.", next: "resume", about: ["paused", "starting"] });
  assert.equal(next(denied, checked("paused")), denied);
  assert.deepEqual(next(denied, { type: "resume" }), { kind: "resuming" });
  assert.deepEqual(next(denied, checked("active", URL_A)), { kind: "loading", url: URL_A, load: 1 });
  assert.deepEqual(next(denied, checked("expired")), { kind: "expired" });
  // Also where the app did not respond: the server's message still holds.
  assert.equal(next(denied, checked("starting")), denied);
  assert.equal(next(denied, restoring).kind, "checking");
  assert.deepEqual(next({ kind: "paused" }, { type: "resume_denied", message: "m" }), { kind: "paused" });
});

test("an application that does not start is shown with its last output", () => {
  const failed = next(resuming(), { type: "resume_denied", message: "The application does not start.", output: "SyntaxError" });
  assert.deepEqual(failed, {
    kind: "error", message: "The application does not start.", next: "resume", about: ["paused", "starting"], output: "SyntaxError",
  });
  assert.equal(next(failed, checked("starting")), failed, "a look that says no more does not replace it");
  assert.deepEqual(next(failed, { type: "resume" }), { kind: "resuming" });
});

test("an expired sandbox is reported, also over a frame", () => {
  assert.deepEqual(next(FIRST, checked("expired")), { kind: "expired" });
  assert.deepEqual(next({ kind: "paused" }, checked("expired")), { kind: "expired" });
  assert.deepEqual(next(active(), checked("expired")), { kind: "expired" });
});

test("an app that forbids frames is blocked, with its address", () => {
  assert.deepEqual(next(FIRST, checked("blocked", URL_A)), { kind: "blocked", url: URL_A });
});

test("before there is a preview the pane waits; after the build it says why there is none", () => {
  for (const status of ["queued", "provisioning", "building"] as const) {
    assert.deepEqual(next(FIRST, checked("none", null, status)), FIRST);
  }
  assert.deepEqual(next(FIRST, checked("none", null, "ready")), { kind: "error", message: TEXT.none, next: "nothing" });
  assert.deepEqual(next(FIRST, checked("none", null, "failed")), { kind: "error", message: TEXT.failed, next: "rebuild" });
  assert.deepEqual(next(FIRST, checked("none", null, "cancelled")), { kind: "error", message: TEXT.cancelled, next: "rebuild" });
});

test("a restart of the app does not take the frame away", () => {
  assert.deepEqual(next(active(), checked("starting")), active());
  assert.deepEqual(next(FIRST, checked("starting")), { kind: "checking", unanswered: true });
});

test("an app that does not answer for long can be resumed", () => {
  assert.deepEqual(silent(), { kind: "error", message: "The app doesn't answer.", next: "resume", about: ["starting"] });
  assert.deepEqual(next(silent(), { type: "resume" }), { kind: "resuming" });
  // A check with the same result changes nothing; another result is applied.
  for (const same of [checked("starting"), { type: "start_late" }, { type: "check_failed", message: "m" }] as const) {
    const before = silent();
    assert.equal(next(before, same), before, JSON.stringify(same));
  }
  assert.deepEqual(next(silent(), checked("active", URL_A)), { kind: "loading", url: URL_A, load: 1 });
  assert.deepEqual(next(silent(), checked("paused")), { kind: "paused" });
  assert.deepEqual(next(silent(), checked("expired")), { kind: "expired" });
});

test("what is under way has all the time it needs", () => {
  const waiting = [FIRST, next(FIRST, restoring), next(FIRST, checked("starting", null, "building", "Working"))];
  for (const state of waiting) {
    assert.deepEqual(state, FIRST);
    assert.equal(next(state, { type: "start_late" }), state);
  }
  assert.deepEqual(next(unanswered(), restoring), FIRST);
  assert.deepEqual(next(silent(), restoring), FIRST);
  for (const state of [active(), resuming(), { kind: "paused" }] as const) assert.equal(next(state, { type: "start_late" }), state);
});

test("a provider that is briefly out of reach does not take the frame away", () => {
  const loading = next(FIRST, checked("active", URL_A));
  const paused = next(active(), checked("paused"));
  for (const shown of [loading, active(), paused]) assert.equal(next(shown, checked("unreachable")), shown);
  assert.deepEqual(next(FIRST, checked("unreachable")), { kind: "error", message: TEXT.unreachable, next: "retry" });
});

test("a change behind the same address reloads the frame", () => {
  assert.deepEqual(next(active(), { type: "changed" }), { kind: "loading", url: URL_A, load: 2 });
  for (const state of [{ kind: "paused" }, { kind: "resuming" }, { kind: "blocked", url: URL_A }] as const) {
    assert.deepEqual(next(state, { type: "changed" }), state);
  }
});

test("a check that fails is an error only where nothing else is known", () => {
  assert.deepEqual(next(FIRST, { type: "check_failed", message: "m" }), { kind: "error", message: "m", next: "retry" });
  assert.deepEqual(next(active(), { type: "check_failed", message: "m" }), active());
  assert.deepEqual(next({ kind: "paused" }, { type: "check_failed", message: "m" }), { kind: "paused" });
});

test("a frame that never loads is an error", () => {
  const late = run(FIRST, checked("active", URL_A), { type: "frame_late", load: 1 });
  assert.deepEqual(late, { kind: "error", message: TEXT.late, next: "retry" });
  assert.equal(next(active(), { type: "frame_late", load: 1 }).kind, "active");
});

test("a resume by another page updates this pane", () => {
  assert.equal(next({ kind: "paused" }, checked("active", URL_B)).kind, "loading");
  assert.deepEqual(next({ kind: "paused" }, { type: "resumed", url: URL_B }), { kind: "paused" });
});

test("every state is reached, and there are nine", () => {
  const reached = new Set<string>();
  const queue: Preview[] = [FIRST];
  const events: PreviewEvent[] = [
    { type: "check" }, { type: "changed" }, { type: "resume" }, { type: "resumed", url: URL_A },
    { type: "frame_loaded", load: 1 }, { type: "frame_late", load: 1 }, { type: "touched" },
    { type: "resume_refused", failure: "sandbox_expired" }, { type: "resume_lost", message: "m" },
    { type: "resume_denied", message: "m" },
    { type: "check_failed", message: "m" }, { type: "start_late" }, restoring,
    ...PREVIEW_STATES.map((state) => checked(state, URL_A)),
  ];
  const seen = new Set<string>();
  for (let state = queue.pop(); state; state = queue.pop()) {
    const key = JSON.stringify(state, (name, value) => (name === "load" ? Math.min(value as number, 2) : value));
    if (seen.has(key)) continue;
    seen.add(key);
    reached.add(state.kind);
    for (const event of events) queue.push(next(state, event));
  }
  assert.deepEqual(
    [...reached].sort(),
    ["active", "blocked", "checking", "error", "expired", "loading", "paused", "resume_failed", "resuming"],
  );
});
