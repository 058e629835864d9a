// The status of a build, in one word and one colour.

import type { JobStatus } from "../wire";

const WORD: Record<JobStatus, string> = {
  queued: "Queued",
  provisioning: "Preparing",
  building: "Building",
  ready: "Ready",
  failed: "Failed",
  cancelled: "Cancelled",
};

export function StatusBadge({ status }: { status: JobStatus }) {
  return <span class={`badge ${status}`} data-status={status}><span class="badge-dot" aria-hidden="true" />{WORD[status]}</span>;
}
