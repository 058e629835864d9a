// Small hooks that several pages share.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { explain, isMissing } from "./api";

/** The current time, updated at an interval, for ages. */
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
 * Calls `action` again `everyMs` after it has ended, while the page is visible; at once when it
 * becomes visible again. `null` stops it.
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

/** How often the value has become visible again. */
export function useReturns(visible: boolean): number {
  const [returns, setReturns] = useState(0);
  const before = useRef(visible);
  useEffect(() => {
    if (visible && !before.current) setReturns((count) => count + 1);
    before.current = visible;
  }, [visible]);
  return returns;
}

export type Loaded<T> = { state: "loading" } | { state: "loaded"; value: T } | { state: "failed"; message: string; missing: boolean };

/**
 * Loads a value, and again when `version` changes: the loaded value stays meanwhile. A changed
 * `key` is another value, and nothing of the previous one is shown.
 */
export function useLoaded<T>(key: string, load: () => Promise<T>, version = 0): [Loaded<T>, () => Promise<void>] {
  const [loaded, setLoaded] = useState<Loaded<T> & { key: string }>({ state: "loading", key });
  const latest = useRef({ key, load });
  latest.current = { key, load };
  // Responses may arrive out of order: one older than the last that was applied is dropped.
  const asked = useRef(0);
  const answered = useRef(0);
  const again = useCallback(async () => {
    const number = ++asked.current;
    const { key, load } = latest.current;
    const outdated = () => {
      if (number < answered.current || latest.current.key !== key) return true;
      answered.current = number;
      return false;
    };
    try {
      const value = await load();
      if (!outdated()) setLoaded({ state: "loaded", value, key });
    } catch (error) {
      if (outdated()) return;
      const failed = { state: "failed", message: explain(error), missing: isMissing(error), key } as const;
      setLoaded((before) => (before.state === "loaded" && before.key === key ? before : failed));
    }
  }, []);
  useEffect(() => {
    setLoaded((before) => (before.key === key ? before : { state: "loading", key }));
    void again();
  }, [key, version, again]);
  return [loaded.key === key ? loaded : { state: "loading" }, again];
}

/** The action of a button: whether it is running, and what failed the last time. */
export function useAction(): {
  busy: boolean;
  problem: string | null;
  run: (action: () => Promise<void>) => Promise<void>;
  dismiss: () => void;
} {
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
  const dismiss = useCallback(() => setProblem(null), []);
  return { busy, problem, run, dismiss };
}
