// A job's timeline, live. Events are folded in batches: a replay of thousands is one render.

import { useEffect, useRef, useState } from "preact/hooks";
import { api } from "../api";
import { toLogin } from "../route";
import { watch } from "../stream";
import type { TimelineEvent } from "../wire";
import { EMPTY, fold, type Timeline } from "./fold";

export type Connection = "connecting" | "live" | "reconnecting" | "gone";

/** After these events the job, its files or its preview may have changed. */
const REFRESHING: readonly TimelineEvent["type"][] = [
  "job_status", "paused", "resumed", "restored", "rotated", "moved", "screenshots", "run_finished", "background_exited", "tool_call_finished",
];

interface Live {
  timeline: Timeline;
  connection: Connection;
}

export function useTimeline(job: string, onTelling: (types: Set<TimelineEvent["type"]>) => void): Live {
  const [timeline, setTimeline] = useState<Timeline>(EMPTY);
  const [connection, setConnection] = useState<Connection>("connecting");
  const onRefresh = useRef(onTelling);
  onRefresh.current = onTelling;
  useEffect(() => {
    let waiting: TimelineEvent[] = [];
    let timer = 0;
    const flush = () => {
      timer = 0;
      const events = waiting;
      waiting = [];
      setTimeline((before) => events.reduce(fold, before));
      const pending = new Set(events.map((event) => event.type).filter((type) => REFRESHING.includes(type)));
      if (pending.size) onRefresh.current(pending);
    };
    const stop = watch(api.eventsPath(job), {
      onEvents(events) {
        if (events.some((event) => event.type === "deleted")) setConnection("gone");
        waiting.push(...events);
        // A timer, not an animation frame: those stop in a hidden tab, and events would pile up.
        timer ||= window.setTimeout(flush, 30);
      },
      onConnection(state) {
        setConnection(state);
        // Events may have been missed while the stream was down: refresh once.
        if (state === "live") onRefresh.current(new Set());
      },
      onSignedOut: toLogin,
      onGone: () => setConnection("gone"),
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [job]);
  return { timeline, connection };
}
