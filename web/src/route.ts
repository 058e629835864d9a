// Which page is shown: the path of the address, and nothing else.

import { useEffect, useState } from "preact/hooks";

export type Route = { page: "dashboard" } | { page: "login"; next: string } | { page: "build"; job: string };

export function parse(path: string, search = ""): Route {
  const build = /^\/jobs\/([^/]+)\/?$/.exec(path);
  if (build) return { page: "build", job: decoded(build[1]!) };
  if (path === "/login") {
    const next = new URLSearchParams(search).get("next") ?? "/";
    // Only a path of ours: a foreign address here would send people away right after they signed in.
    return { page: "login", next: /^\/(?![/\\])/.test(next) ? next : "/" };
  }
  return { page: "dashboard" };
}

/** As it stands where it is no encoding of anything: such a build is not there, and the page says so. */
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

/** The build whose preview shall be resumed as soon as its page is there: the dashboard's button sets it. */
let wanted: string | null = null;

export function resumeOnArrival(job: string): void {
  wanted = job;
  go(buildPath(job));
}

export function wantsResume(job: string): boolean {
  return wanted === job;
}

export function takeWantedResume(job: string): boolean {
  const taken = wantsResume(job);
  if (taken) wanted = null;
  return taken;
}
