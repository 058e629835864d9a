// Drives the pane's machine: asks the server how the preview is, resumes it, watches the frame. Asking never wakes anything.

import { useCallback, useEffect, useReducer, useRef, useState } from "preact/hooks";
import { api, ApiError, explain, isMissing } from "../api";
import { usePoll } from "../hooks";
import { takeWantedResume } from "../route";
import type { Status } from "../wire";
import { FIRST, next, type Failure, type Happening, type Preview } from "./machine";

/** How soon to look again, by state. A loaded frame is looked after rarely: the timeline tells most of it. */
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

/** Most apps answer by then. One that takes longer is shown when it answers, whatever was said meanwhile. */
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

export function usePreview(job: string, status: Status | null): PreviewControl {
  const [state, dispatch] = useReducer(next, FIRST);
  const known = useRef(status);
  known.current = status;
  // A build that is not there has no preview, however often one looks.
  const [missing, setMissing] = useState(false);

  // One look at a time, so that none overtakes another; whoever asks during one gets a look that began after they asked.
  const looking = useRef<{ done: Promise<void>; again: boolean } | null>(null);
  const check = useCallback(() => {
    if (looking.current) {
      looking.current.again = true;
      return looking.current.done;
    }
    const look = { done: Promise.resolve(), again: false };
    looking.current = look;
    look.done = (async () => {
      do {
        look.again = false;
        try {
          const answer = await api.preview(job);
          setMissing(false);
          dispatch({ type: "checked", check: answer, status: known.current ?? "building" });
        } catch (error) {
          setMissing(isMissing(error));
          dispatch({ type: "check_failed", message: explain(error) });
        }
      } while (look.again);
      looking.current = null;
    })();
    return look.done;
  }, [job]);

  const recheck = useCallback(() => {
    dispatch({ type: "check" });
    void check();
  }, [check]);

  const changed = useCallback(() => dispatch({ type: "changed" }), []);

  // One call: the server tries again by itself and knows when to give up.
  const resume = useCallback(() => {
    dispatch({ type: "resume" });
    api.resume(job).then(
      ({ preview_url }) => dispatch({ type: "resumed", url: preview_url }),
      (error: unknown) => dispatch(unresumed(error)),
    );
  }, [job]);

  useEffect(() => {
    void check();
  }, [check, status]);
  // The dashboard's "Resume preview" leads here. The machine resumes from `paused`, so the look comes first. Whatever it finds, the
  // wish is over then: a preview that was awake and falls asleep later is not woken by it.
  useEffect(() => {
    if (state.kind === "checking" || (state.kind === "error" && state.next === "retry")) return;
    if (takeWantedResume(job) && state.kind === "paused") resume();
  }, [state.kind, job, resume]);

  usePoll(check, missing ? null : interval(state));

  const unanswered = state.kind === "checking" && state.unanswered;
  useEffect(() => {
    if (!unanswered) return;
    const timer = setTimeout(() => dispatch({ type: "start_late" }), START_DEADLINE_MS);
    return () => clearTimeout(timer);
  }, [unanswered]);

  // A sandbox that fell asleep meanwhile leaves half a page, and the frame says "loaded" all the same: look once more.
  const frameLoaded = useCallback(
    async (which: number) => {
      await check();
      dispatch({ type: "frame_loaded", load: which });
    },
    [check],
  );
  const frameLate = useCallback((which: number) => dispatch({ type: "frame_late", load: which }), []);

  // The server stops what is behind the frame once the frame has what it needs, or can have
  // nothing.
  const shown = state.kind === "active" ? state.load : state.kind === "blocked" ? 0 : null;
  useEffect(() => {
    // It waits for no longer than a page may take, so that a call that is lost does no harm.
    if (shown !== null) api.previewLoaded(job).catch(() => {});
  }, [job, shown]);

  const touched = useCallback(() => dispatch({ type: "touched" }), []);
  const asleep = state.kind === "active" && state.asleep;
  useEffect(() => {
    if (!asleep) return;
    // The focus goes into a frame of another origin without any other sign.
    const looked = () => {
      if (document.activeElement instanceof HTMLIFrameElement) touched();
    };
    const returned = () => {
      if (document.visibilityState === "visible") touched();
    };
    looked();
    window.addEventListener("blur", looked);
    document.addEventListener("visibilitychange", returned);
    return () => {
      window.removeEventListener("blur", looked);
      document.removeEventListener("visibilitychange", returned);
    };
  }, [asleep, touched]);
  return { state, check, recheck, changed, resume, frameLoaded, frameLate, touched };
}

function unresumed(error: unknown): Happening {
  const failure = failureOf(error);
  if (failure) return { type: "resume_refused", failure };
  if (!(error instanceof ApiError)) return { type: "resume_lost", message: explain(error) };
  return { type: "resume_denied", message: explain(error), output: error.body.output };
}

function failureOf(error: unknown): Failure | null {
  if (!(error instanceof ApiError) || error.status !== 503) return null;
  return error.errorType === "sandbox_expired" || error.errorType === "sandbox_unreachable" ? error.errorType : null;
}
