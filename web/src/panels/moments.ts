// Which pictures were taken together.

import type { Screenshot } from "../wire";

/** Pictures taken within this time, one a device, belong to one moment. */
const TOGETHER_MS = 15_000;

/** The newest moment first. */
export function moments(screenshots: Screenshot[]): Screenshot[][] {
  const sorted = [...screenshots].sort((a, b) => Date.parse(b.taken_at) - Date.parse(a.taken_at));
  const groups: Screenshot[][] = [];
  for (const shot of sorted) {
    const group = groups.at(-1);
    const first = group?.[0];
    const fits = first && Date.parse(first.taken_at) - Date.parse(shot.taken_at) < TOGETHER_MS && group.every((each) => each.device !== shot.device);
    if (fits) group.push(shot);
    else groups.push([shot]);
  }
  return groups;
}
