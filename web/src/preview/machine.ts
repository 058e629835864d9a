// The state machine of the preview pane: nine states, and one pure function from state and event to
// the next state.
//
// checking ─┬─▶ loading ──▶ active          (the frame is shown from `loading` on)
//             ├─▶ blocked                     (the app forbids frames: offer a new tab)
//             ├─▶ paused ──▶ resuming ─┬─▶ loading
//             ├─▶ expired              └─▶ resume_failed
//             └─▶ error                     (with a next step: check again, resume or rebuild)
//
// Invariants: a loaded frame stays when its sandbox is paused or unreachable, and nothing around it
// changes until the user focuses it; during a resume only its own end changes the state; every
// state but `checking` and `resuming` names what the user can do next.

import type { JobStatus, Preview as PreviewCheck, PreviewStateView as PreviewState } from "../wire";

export type Failure = "sandbox_expired" | "sandbox_unreachable";

export type Preview =
  /** Unanswered: the sandbox runs, no build is in progress, and yet the app does not respond. */
  | { kind: "checking"; unanswered: boolean }
  | { kind: "loading"; url: string; load: number }
  /** Paused: the server behind the frame is stopped. Offered: the pane offers to resume it. */
  | { kind: "active"; url: string; load: number; paused: boolean; offered: boolean }
  | { kind: "blocked"; url: string }
  | { kind: "expired" }
  | { kind: "paused" }
  | { kind: "resuming" }
  | { kind: "resume_failed"; failure: Failure }
  | { kind: "error"; message: string; next: "retry" | "rebuild" | "nothing" }
  /** Stays while checks report one of these states. */
  | { kind: "error"; message: string; next: "resume"; about: readonly PreviewState[]; output?: string };

export type Kind = Preview["kind"];

export type PreviewEvent =
  /** The page wants a new check: the user reloads, or the server is reachable again. */
  | { type: "check" }
  | { type: "checked"; check: PreviewCheck; status: JobStatus }
  | { type: "check_failed"; message: string }
  /** The content behind the same address changed. */
  | { type: "changed" }
  | { type: "frame_loaded"; load: number }
  | { type: "frame_late"; load: number }
  /** The user focuses the frame or returns to the page: the app's next request may fail. */
  | { type: "touched" }
  /** The app has not responded for a while. */
  | { type: "start_late" }
  | { type: "resume" }
  /** Without a URL: the sandbox runs and the build has no page. */
  | { type: "resumed"; url: string | null }
  | { type: "resume_refused"; failure: Failure }
  /** The server refused the resume, or the application failed to start with this output. */
  | { type: "resume_denied"; message: string; output?: string | undefined }
  /** No response: the next check reports the result. */
  | { type: "resume_lost"; message: string };

export const FIRST: Preview = { kind: "checking", unanswered: false };

export const TEXT = {
  paused: "Your preview is sleeping.",
  resuming: "Resuming preview...",
  resumeFailed: "Resume failed",
  sandbox_expired: "The sandbox has expired and can't be recovered.",
  sandbox_unreachable: "The sandbox couldn't be reached. It may be corrupted.",
  question: "This will use 1 build credit. Continue?",
  expired: "Your preview has expired.",
  blocked: "This app doesn't let other pages show it.",
  unreachable: "The preview doesn't answer right now.",
  silent: "The app doesn't answer.",
  late: "The preview is taking too long to load.",
  none: "This build has no preview.",
  failed: "This build ended before there was a preview.",
  cancelled: "This build was cancelled before there was a preview.",
} as const;

/** Numbers the loads, so that a late event of an earlier frame is ignored. */
function load(state: Preview, url: string): Preview {
  const before = state.kind === "loading" || state.kind === "active" ? state.load : 0;
  return { kind: "loading", url, load: before + 1 };
}

export function next(state: Preview, event: PreviewEvent): Preview {
  switch (event.type) {
    case "check":
      return state.kind === "resuming" ? state : FIRST;
    case "checked":
      return checked(state, event.check, event.status);
    case "check_failed":
      // A frame or card stays: a failed check says nothing about the preview.
      return state.kind === "checking" ? { kind: "error", message: event.message, next: "retry" } : state;
    case "changed":
      return showsFrame(state) ? load(state, state.url) : state;
    case "frame_loaded":
      if (state.kind === "loading" && state.load === event.load) {
        return { kind: "active", url: state.url, load: state.load, paused: false, offered: false };
      }
      // The frame has loaded another page, and no server responds to it.
      return offer(state);
    case "touched":
      return offer(state);
    case "frame_late":
      return state.kind === "loading" && state.load === event.load
        ? { kind: "error", message: TEXT.late, next: "retry" }
        : state;
    case "start_late":
      return state.kind === "checking" && state.unanswered
        ? { kind: "error", message: TEXT.silent, next: "resume", about: ["starting"] }
        : state;
    case "resume":
      return canResume(state) ? { kind: "resuming" } : state;
    case "resumed":
      if (state.kind !== "resuming") return state;
      return event.url ? load(state, event.url) : { kind: "error", message: TEXT.none, next: "nothing" };
    case "resume_refused":
      return state.kind === "resuming" ? { kind: "resume_failed", failure: event.failure } : state;
    case "resume_denied":
      if (state.kind !== "resuming") return state;
      return {
        kind: "error", message: event.message, next: "resume", about: ["paused", "starting"], ...(event.output ? { output: event.output } : {}),
      };
    case "resume_lost":
      return state.kind === "resuming" ? { kind: "error", message: event.message, next: "retry" } : state;
  }
}

function checked(state: Preview, check: PreviewCheck, status: JobStatus): Preview {
  if (outlasts(state, check)) return state;
  switch (check.state) {
    case "starting":
      // A reason is a stage: the build, or a restore of a ready build, is in progress.
      return { kind: "checking", unanswered: status === "ready" && !check.reason };
    case "active":
      if (!check.preview_url) return { kind: "error", message: TEXT.unreachable, next: "retry" };
      if (showsFrame(state) && state.url === check.preview_url) {
        return state.kind === "active" && state.paused ? { ...state, paused: false, offered: false } : state;
      }
      return load(state, check.preview_url);
    case "blocked":
      return check.preview_url
        ? { kind: "blocked", url: check.preview_url }
        : { kind: "error", message: TEXT.blocked, next: "nothing" };
    case "paused":
      return state.kind === "active" ? { ...state, paused: true } : { kind: "paused" };
    case "expired":
      return { kind: "expired" };
    case "unreachable":
      return { kind: "error", message: TEXT.unreachable, next: "retry" };
    case "none":
      return nothing(status);
  }
}

/** Whether the shown state says more than the check does, and stays. */
function outlasts(state: Preview, check: PreviewCheck): boolean {
  switch (state.kind) {
    case "resuming":
      return true;
    case "resume_failed":
      // Only a preview that responds after all replaces it.
      return check.state !== "active" && check.state !== "blocked";
    case "loading":
    case "active":
      // The app restarts, or its state is unknown: neither contradicts the page that is shown.
      return check.state === "starting" || check.state === "unreachable";
    case "error":
      return state.next === "resume" && state.about.includes(check.state) && !check.reason;
    default:
      return false;
  }
}

/** No preview: the build is in progress, or it is over. */
function nothing(status: JobStatus): Preview {
  switch (status) {
    case "queued":
    case "provisioning":
    case "building":
      return FIRST;
    case "ready":
      return { kind: "error", message: TEXT.none, next: "nothing" };
    case "failed":
      return { kind: "error", message: TEXT.failed, next: "rebuild" };
    case "cancelled":
      return { kind: "error", message: TEXT.cancelled, next: "rebuild" };
  }
}

/** Offers to resume a paused preview behind its frame, once the user may notice the pause. */
function offer(state: Preview): Preview {
  return state.kind === "active" && state.paused && !state.offered ? { ...state, offered: true } : state;
}

function canResume(state: Preview): boolean {
  return state.kind === "paused" || state.kind === "active" || (state.kind === "error" && state.next === "resume");
}

function showsFrame(state: Preview): state is Extract<Preview, { kind: "loading" | "active" }> {
  return state.kind === "loading" || state.kind === "active";
}
