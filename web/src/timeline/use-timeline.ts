// A job's timeline, live. Events are folded once a frame, however many come: a replay of thousands is one drawing.

import { useEffect, useRef, useState } from "preact/hooks";
import { api } from "../api";
import { toLogin } from "../route";
import { watch } from "../stream";
import type { TimelineEvent } from "../wire";
import { EMPTY, fold, type Timeline } from "./fold";

export type Connection = "connecting" | "live" | "reconnecting" | "gone";

/** After these the job's own record, its files or its preview may be another. */
const TELLING: readonly TimelineEvent["type"][] = [
  "job_status", "paused", "resumed", "restored", "rotated", "moved", "screenshots", "run_finished", "background_exited", "tool_call_finished",
];

interface Live {
  timeline: Timeline;
  connection: Connection;
}

export function useTimeline(job: string, onTelling: (types: Set<TimelineEvent["type"]>) => void): Live {
  const [timeline, setTimeline] = useState<Timeline>(EMPTY);
  const [connection, setConnection] = useState<Connection>("connecting");
  const telling = useRef(onTelling);
  telling.current = onTelling;
  useEffect(() => {
    let waiting: TimelineEvent[] = [];
    let timer = 0;
    const flush = () => {
      timer = 0;
      const events = waiting;
      waiting = [];
      setTimeline((before) => events.reduce(fold, before));
      const told = new Set(events.map((event) => event.type).filter((type) => TELLING.includes(type)));
      if (told.size) telling.current(told);
    };
    const stop = watch(api.eventsPath(job), {
      onEvents(events) {
        if (events.some((event) => event.type === "deleted")) setConnection("gone");
        waiting.push(...events);
        // A timer, not an animation frame: those stand still in a tab that nobody looks at, and events would pile up.
        timer ||= window.setTimeout(flush, 30);
      },
      onConnection(state) {
        setConnection(state);
        // Whatever happened while nobody told: look once.
        if (state === "live") telling.current(new Set());
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
