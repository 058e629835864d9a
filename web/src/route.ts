// Routing: the path of the address, and nothing else, decides which page is shown.

import { useEffect, useState } from "preact/hooks";

export type Route = { page: "dashboard" } | { page: "login"; next: string } | { page: "build"; job: string };

export function parse(path: string, search = ""): Route {
  const build = /^\/jobs\/([^/]+)\/?$/.exec(path);
  if (build) return { page: "build", job: decoded(build[1]!) };
  if (path === "/login") {
    const next = new URLSearchParams(search).get("next") ?? "/";
    // Only a path of ours: a foreign address would redirect people right after they signed in.
    return { page: "login", next: /^\/(?![/\\])/.test(next) ? next : "/" };
  }
  return { page: "dashboard" };
}

/**
 * The part itself when it is no valid encoding: such a build does not exist, and the page says so.
 */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const buildPath = (job: string) => `/jobs/${encodeURIComponent(job)}`;

const CHANGED = "sandbar:route";

export function go(path: string): void {
  history.pushState(null, "", path);
  dispatchEvent(new Event(CHANGED));
  scrollTo(0, 0);
}

export function toLogin(): void {
  if (location.pathname !== "/login") go(`/login?next=${encodeURIComponent(location.pathname)}`);
}

export function useRoute(): Route {
  const here = () => parse(location.pathname, location.search);
  const [route, setRoute] = useState(here);
  useEffect(() => {
    const changed = () => setRoute(here());
    addEventListener("popstate", changed);
    addEventListener(CHANGED, changed);
    return () => {
      removeEventListener("popstate", changed);
      removeEventListener(CHANGED, changed);
    };
  }, []);
  return route;
}

/** The build whose preview is resumed once its page is open: the dashboard's button sets it. */
let resumeRequest: string | null = null;

export function requestResume(job: string): void {
  resumeRequest = job;
  go(buildPath(job));
}

export function hasResumeRequest(job: string): boolean {
  return resumeRequest === job;
}

export function consumeResumeRequest(job: string): boolean {
  const taken = hasResumeRequest(job);
  if (taken) resumeRequest = null;
  return taken;
}
