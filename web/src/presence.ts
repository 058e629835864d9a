// Page visibility. A browser opens at most six connections per server, and pages in the background
// or in the back-forward cache keep theirs: so an event stream is closed while the page is hidden,
// and opened again when it is visible.

/** A page that is hidden for a shorter time keeps its stream. */
const HIDDEN_MS = 60_000;

/**
 * Calls `action` once the page is hidden for long enough. The returned function removes the
 * listeners.
 */
export function onHidden(action: () => void): () => void {
  if (typeof document === "undefined") return () => {};
  let timer = 0;
  const changed = () => {
    clearTimeout(timer);
    if (document.visibilityState === "hidden") timer = window.setTimeout(action, HIDDEN_MS);
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

/** Resolves when the page is visible, at once if it is. */
export async function untilVisible(stop: AbortSignal): Promise<void> {
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
