// Groups screenshots that were taken together.

import type { Screenshot } from "../wire";

/** Screenshots taken within this time, one per device, belong to one moment. */
const GROUP_MS = 15_000;

/** The groups, the newest first. */
export function moments(screenshots: Screenshot[]): Screenshot[][] {
  const sorted = [...screenshots].sort((a, b) => Date.parse(b.taken_at) - Date.parse(a.taken_at));
  const groups: Screenshot[][] = [];
  for (const shot of sorted) {
    const group = groups.at(-1);
    const first = group?.[0];
    const fits = first && Date.parse(first.taken_at) - Date.parse(shot.taken_at) < GROUP_MS && group.every((each) => each.device !== shot.device);
    if (fits) group.push(shot);
    else groups.push([shot]);
  }
  return groups;
}
