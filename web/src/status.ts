// The status of a build.
import type { JobStatus } from "./wire";

export const FINISHED: readonly JobStatus[] = ["ready", "failed", "cancelled"];

export function isFinished(status: JobStatus): boolean {
  return FINISHED.includes(status);
}
