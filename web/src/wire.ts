// The types of /api, without behaviour.

export type Status = "queued" | "provisioning" | "building" | "ready" | "failed" | "cancelled";

export interface Job {
  job_id: string;
  project_id: string;
  project_name: string;
  goal: string;
  model: string | null;
  status: Status;
  stage_label: string | null;
  created_at: string;
  finished_at: string | null;
  build_version: number;
  preview_url: string | null;
  sandbox_paused: boolean;
  sandbox_id: string | null;
  cost_usd: number | null;
  screenshot_url: string | null;
  error_message: string | null;
  debug_id: string | null;
  rebuilt_from: string | null;
}

export interface Project {
  project_id: string;
  name: string;
  created_at: string;
  cost_usd: number | null;
}

/** One limit of a provider's plan. */
export interface PlanUse {
  provider: string;
  what: string;
  used: number;
  limit: number | null;
}

export interface Dashboard {
  user: { name: string; credits: number };
  projects: Project[];
  jobs: Job[];
  usage: { total_usd: number; month_usd: number; budget_usd: number | null; plans: PlanUse[] };
  models: string[];
  default_model: string | null;
}

export interface ApprovalRule {
  tool: string;
  pattern?: string;
  decision: "allow" | "ask" | "deny";
}

export interface NewBuild {
  project_id?: string;
  name?: string;
  /** The name must be new: the server refuses the name of a project with builds. */
  new_project?: boolean;
  goal: string;
  phases?: string[];
  repo?: string;
  branch?: string;
  model?: string;
  template?: string;
  budget_usd?: number;
  approvals?: ApprovalRule[];
}

export interface Started {
  job_id: string;
  status: Status;
}

export type PreviewState = "starting" | "active" | "blocked" | "paused" | "expired" | "unreachable" | "none";

export interface PreviewCheck {
  state: PreviewState;
  preview_url: string | null;
  reason: string | null;
}

export interface Screenshot {
  id: string;
  device: "desktop" | "mobile";
  width: number;
  height: number;
  taken_at: string;
  reason: string | null;
  url: string;
}

export interface Snapshot {
  key: string;
  files: number;
  bytes: number;
  created_at: string;
  verified: boolean;
}

export interface FileEntry {
  name: string;
  path: string;
  kind: "file" | "directory" | "link";
  bytes: number;
}

export interface FileList {
  source: "sandbox" | "snapshot";
  path: string;
  entries: FileEntry[];
  /** The directory has more entries than are listed. */
  truncated: boolean;
}

export interface FileText {
  source: "sandbox" | "snapshot";
  path: string;
  text: string | null;
  bytes: number;
  binary: boolean;
  truncated: boolean;
}

export interface UsageLine {
  what: string;
  provider?: string | null;
  model?: string | null;
  quantity: number;
  unit: string;
  cost_usd: number | null;
}

export interface UsageReport {
  total_usd: number;
  lines: UsageLine[];
}

/** The body of every error response. */
export interface ErrorBody {
  code: number;
  message: string;
  error_type?: string;
  hint?: string;
  /** The end of the log of an application that does not start. */
  output?: string;
}

export interface ImageRef {
  url: string;
  device?: string;
  width?: number;
  height?: number;
}

/** Fields of every recorded event; deltas have no `seq`. */
interface Recorded {
  seq?: number;
  ts: string;
  turn?: number;
}

type Of<Type extends string, Fields = unknown> = Recorded & { type: Type } & Fields;

/** All events of a job's timeline: the agent's and the studio's. */
export type TimelineEvent =
  | Of<"run_started", { run_id: string; goal: string; model: string; resumed: boolean }>
  | Of<"turn_started">
  | Of<"text_delta", { text: string }>
  | Of<"thinking_delta", { text: string }>
  | Of<"message", { text: string }>
  | Of<"tool_call_started", { id: string; tool: string; args: unknown }>
  | Of<"tool_output_delta", { id: string; stream: string; chunk: string }>
  | Of<
      "tool_call_finished",
      {
        id: string;
        tool: string;
        is_error: boolean;
        code: string | null;
        duration_ms: number;
        truncated: boolean;
        summary: string;
        output?: string | null;
        images?: (string | ImageRef)[];
      }
    >
  | Of<"observed">
  | Of<"approval_asked", { id: string; tool: string; args: unknown }>
  | Of<"approval_answered", { id: string; allowed: boolean; reason: string | null }>
  | Of<"nudge", { text: string }>
  | Of<"pruned", { results: number; images: number; before: number; after: number }>
  | Of<"compacted", { before: number; after: number }>
  | Of<
      "usage",
      {
        input_tokens: number;
        output_tokens: number;
        cache_read_tokens: number;
        cache_write_tokens: number;
        cost_usd: number | null;
        total_cost_usd: number | null;
        context_tokens: number;
        context_window: number;
      }
    >
  | Of<"retry", { attempt: number; wait_ms: number; reason: string }>
  | Of<"background_exited", { task_id: string; exit_code: number; output_path: string | null }>
  | Of<"phase_started", { phase: number; of: number; goal: string }>
  | Of<"phase_finished", { phase: number; commit: string | null; snapshot: string | null }>
  | Of<"saved", { snapshot: string | null; problem: string | null }>
  /** Automatic: at the end of a build, which the page does not show. */
  | Of<"paused", { problem?: string | null; automatic?: boolean }>
  | Of<
      "run_finished",
      { stop_reason: string; message: string; turns: number; cost_usd: number | null; text: string; files_changed: string[] }
    >
  | Of<
      "job_status",
      { status: Status; stage_label: string | null; sandbox_paused: boolean; preview_url: string | null; message?: string | null }
    >
  | Of<"snapshot_saved", { key: string; files: number; bytes: number }>
  | Of<"rotated", { from: string; to: string; reason: string }>
  | Of<"moved", { from_provider: string; to_provider: string; reason: string }>
  | Of<"resumed", { preview_url: string | null }>
  | Of<"restored", { stamp: string; saved_at: string }>
  | Of<"extended", { until: string }>
  | Of<"screenshots", { images: ImageRef[]; reason: string | null }>
  | Of<"phase_committed", { message: string | null; commit: string }>
  | Of<"limit_warning", { what: string; percent: number }>
  | Of<"cost", { total_usd: number }>
  | Of<"credit", { change: number; balance: number; reason: string }>
  | Of<"notice", { text: string }>
  /** The last event: nothing of the job is left. */
  | Of<"deleted">;

export const FINISHED: readonly Status[] = ["ready", "failed", "cancelled"];

export function isFinished(status: Status): boolean {
  return FINISHED.includes(status);
}
