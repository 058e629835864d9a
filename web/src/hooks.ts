// Small hooks that several pages share.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { explain } from "./api";

/** The time, renewed now and then, for ages. */
export function useNow(everyMs = 15_000): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

export function useMedia(query: string): boolean {
  const [matches, setMatches] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const changed = () => setMatches(list.matches);
    changed();
    list.addEventListener("change", changed);
    return () => list.removeEventListener("change", changed);
  }, [query]);
  return matches;
}

/**
 * Calls `action` again `everyMs` after it has ended, while the page is looked at; at once when it comes back into view.
 * `null` stops it.
 */
export function usePoll(action: () => Promise<void>, everyMs: number | null): void {
  const latest = useRef(action);
  latest.current = action;
  useEffect(() => {
    if (everyMs === null) return;
    let timer = 0;
    let stopped = false;
    let running = false;
    const tick = async () => {
      clearTimeout(timer);
      if (running || stopped) return;
      running = true;
      if (document.visibilityState === "visible") await latest.current();
      running = false;
      if (!stopped) timer = window.setTimeout(tick, everyMs);
    };
    const seen = () => {
      if (document.visibilityState === "visible") void tick();
    };
    timer = window.setTimeout(tick, everyMs);
    document.addEventListener("visibilitychange", seen);
    return () => {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [everyMs]);
}

export type Loaded<T> = { state: "loading" } | { state: "loaded"; value: T } | { state: "failed"; message: string };

/** Loads a value; what was loaded stays on the page while it is loaded anew, unless the `key` is another. */
export function useLoaded<T>(key: string, load: () => Promise<T>): [Loaded<T>, () => Promise<void>] {
  const [loaded, setLoaded] = useState<Loaded<T> & { key: string }>({ state: "loading", key });
  const latest = useRef({ key, load });
  latest.current = { key, load };
  const again = useCallback(async () => {
    const asked = latest.current;
    try {
      const value = await asked.load();
      if (latest.current.key === asked.key) setLoaded({ state: "loaded", value, key: asked.key });
    } catch (error) {
      if (latest.current.key !== asked.key) return;
      setLoaded((before) =>
        before.state === "loaded" && before.key === asked.key ? before : { state: "failed", message: explain(error), key: asked.key },
      );
    }
  }, []);
  useEffect(() => {
    setLoaded((before) => (before.key === key ? before : { state: "loading", key }));
    void again();
  }, [key, again]);
  return [loaded.key === key ? loaded : { state: "loading" }, again];
}

/** An action of a button: whether it is under way, and what went wrong with the last one. */
export function useAction(): { busy: boolean; problem: string | null; run: (action: () => Promise<void>) => Promise<void> } {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const run = useCallback(async (action: () => Promise<void>) => {
    setBusy(true);
    setProblem(null);
    try {
      await action();
    } catch (error) {
      setProblem(explain(error));
    } finally {
      setBusy(false);
    }
  }, []);
  return { busy, problem, run };
}
