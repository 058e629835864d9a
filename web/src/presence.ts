// Whether anybody is there. A browser gives a server six connections at most, and pages in the background, or kept for the
// "back" button, hold on to theirs: so an open stream is given up when nobody looks, and taken up again when somebody does.

/** Looking elsewhere for a moment is not being away. */
const AWAY_MS = 60_000;

/** Calls `action` once nobody looks any more. The returned function ends the watch. */
export function whenAway(action: () => void): () => void {
  if (typeof document === "undefined") return () => {};
  let timer = 0;
  const changed = () => {
    clearTimeout(timer);
    if (document.visibilityState === "hidden") timer = window.setTimeout(action, AWAY_MS);
  };
  changed();
  document.addEventListener("visibilitychange", changed);
  addEventListener("pagehide", action);
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", changed);
    removeEventListener("pagehide", action);
  };
}

/** Resolves when the page is looked at, at once if it is. */
export async function untilHere(stop: AbortSignal): Promise<void> {
  if (typeof document === "undefined" || document.visibilityState === "visible") return;
  await new Promise<void>((resolve) => {
    const here = () => {
      if (document.visibilityState === "hidden" && !stop.aborted) return;
      document.removeEventListener("visibilitychange", here);
      removeEventListener("pageshow", here);
      stop.removeEventListener("abort", here);
      resolve();
    };
    document.addEventListener("visibilitychange", here);
    addEventListener("pageshow", here);
    stop.addEventListener("abort", here);
  });
}
