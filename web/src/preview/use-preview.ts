// Drives the pane's machine: checks the preview on the server, resumes it, watches the frame. A
// check never resumes anything.

import { useCallback, useEffect, useReducer, useRef, useState } from "preact/hooks";
import { api, ApiError, explain, isMissing } from "../api";
import { usePoll } from "../hooks";
import { consumeResumeRequest } from "../route";
import type { JobStatus } from "../wire";
import { FIRST, next, type Failure, type PreviewEvent, type Preview } from "./machine";

/**
 * The interval of checks, by state. A loaded frame is checked rarely: the timeline reports most
 * changes.
 */
function interval(state: Preview): number | null {
  switch (state.kind) {
    case "checking":
      return 1_000;
    case "error":
      return state.next === "retry" || state.next === "resume" ? 3_000 : 15_000;
    case "resuming":
      return null;
    case "loading":
    case "active":
    case "blocked":
    case "paused":
    case "expired":
    case "resume_failed":
      return 10_000;
  }
}

/** Most apps respond by then. A slower one is shown as soon as it responds. */
const START_DEADLINE_MS = 20_000;

export interface PreviewControl {
  state: Preview;
  check: () => Promise<void>;
  recheck: () => void;
  changed: () => void;
  resume: () => void;
  frameLoaded: (load: number) => Promise<void>;
  frameLate: (load: number) => void;
  touched: () => void;
}

export function usePreview(job: string, status: JobStatus | null): PreviewControl {
  const [state, dispatch] = useReducer(next, FIRST);
  const known = useRef(status);
  known.current = status;
  // A build that does not exist has no preview, so the checks stop.
  const [missing, setMissing] = useState(false);

  // One check at a time, so that none overtakes another; a call during a check waits for a check
  // that started after the call.
  const pendingCheck = useRef<{ done: Promise<void>; again: boolean } | null>(null);
  const check = useCallback(() => {
    if (pendingCheck.current) {
      pendingCheck.current.again = true;
      return pendingCheck.current.done;
    }
    const current = { done: Promise.resolve(), again: false };
    pendingCheck.current = current;
    current.done = (async () => {
      do {
        current.again = false;
        try {
          const answer = await api.preview(job);
          setMissing(false);
          dispatch({ type: "checked", check: answer, status: known.current ?? "building" });
        } catch (error) {
          setMissing(isMissing(error));
          dispatch({ type: "check_failed", message: explain(error) });
        }
      } while (current.again);
      pendingCheck.current = null;
    })();
    return current.done;
  }, [job]);

  const recheck = useCallback(() => {
    dispatch({ type: "check" });
    void check();
  }, [check]);

  const changed = useCallback(() => dispatch({ type: "changed" }), []);

  // One call: the server retries itself and has its own deadline.
  const resume = useCallback(() => {
    dispatch({ type: "resume" });
    api.resume(job).then(
      ({ preview_url }) => dispatch({ type: "resumed", url: preview_url }),
      (error: unknown) => dispatch(resumeFailure(error)),
    );
  }, [job]);

  useEffect(() => {
    void check();
  }, [check, status]);
  // The dashboard's "Resume preview" navigates here. The machine resumes from `paused`, so the
  // check comes first. The request is consumed with any result: a preview that is paused later is
  // not resumed by it.
  useEffect(() => {
    if (state.kind === "checking" || (state.kind === "error" && state.next === "retry")) return;
    if (consumeResumeRequest(job) && state.kind === "paused") resume();
  }, [state.kind, job, resume]);

  usePoll(check, missing ? null : interval(state));

  const unanswered = state.kind === "checking" && state.unanswered;
  useEffect(() => {
    if (!unanswered) return;
    const timer = setTimeout(() => dispatch({ type: "start_late" }), START_DEADLINE_MS);
    return () => clearTimeout(timer);
  }, [unanswered]);

  // A sandbox that was paused meanwhile leaves half a page, and the frame still reports "loaded":
  // check once more.
  const frameLoaded = useCallback(
    async (which: number) => {
      await check();
      dispatch({ type: "frame_loaded", load: which });
    },
    [check],
  );
  const frameLate = useCallback((which: number) => dispatch({ type: "frame_late", load: which }), []);

  // The server pauses the sandbox once the frame has loaded, or can load nothing.
  const shown = state.kind === "active" ? state.load : state.kind === "blocked" ? 0 : null;
  useEffect(() => {
    // The server waits no longer than its timeout, so that a lost call does no harm.
    if (shown !== null) api.previewLoaded(job).catch(() => {});
  }, [job, shown]);

  const touched = useCallback(() => dispatch({ type: "touched" }), []);
  const paused = state.kind === "active" && state.paused;
  useEffect(() => {
    if (!paused) return;
    // Focus moves into a cross-origin frame without any other event.
    const focusMoved = () => {
      if (document.activeElement instanceof HTMLIFrameElement) touched();
    };
    const returned = () => {
      if (document.visibilityState === "visible") touched();
    };
    focusMoved();
    window.addEventListener("blur", focusMoved);
    document.addEventListener("visibilitychange", returned);
    return () => {
      window.removeEventListener("blur", focusMoved);
      document.removeEventListener("visibilitychange", returned);
    };
  }, [paused, touched]);
  return { state, check, recheck, changed, resume, frameLoaded, frameLate, touched };
}

function resumeFailure(error: unknown): PreviewEvent {
  const failure = refusalOf(error);
  if (failure) return { type: "resume_refused", failure };
  if (!(error instanceof ApiError)) return { type: "resume_lost", message: explain(error) };
  return { type: "resume_denied", message: explain(error), output: error.body.output ?? undefined };
}

function refusalOf(error: unknown): Failure | null {
  if (!(error instanceof ApiError) || error.status !== 503) return null;
  return error.errorType === "sandbox_expired" || error.errorType === "sandbox_unreachable" ? error.errorType : null;
}
