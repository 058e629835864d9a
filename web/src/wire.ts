// The types of /api, generated from the OpenAPI document. After a change of the document:
// GOLDEN=write cargo test -p sandbar-studio --test studio wire

export interface ApprovalAnswer {
  allow: boolean;
  /** Sent to the model. */
  reason?: string | null;
}

/** An approval request that was answered. */
export interface ApprovalAnswered {
  allowed: boolean;
  id: string;
}

export interface ApprovalRule {
  decision: RuleDecision;
  /** A regular expression that matches anywhere in the command or path; absent: always. */
  pattern?: string | null;
  /** A tool's name, or `*`. */
  tool: string;
}

/** The user's projects, builds and usage. */
export interface Dashboard {
  default_model: string | null;
  /** The newest first. */
  jobs: Array<Job>;
  /** The models that can be chosen. */
  models: Array<string>;
  /** The newest first. */
  projects: Array<Project>;
  usage: TotalUsage;
  user: Me;
}

export interface Entry {
  bytes: number;
  kind: EntryKind;
  name: string;
  /** Relative to the project. */
  path: string;
}

export type EntryKind = "directory" | "file" | "link";

/** What failed. */
export interface Error {
  /** The HTTP status. */
  code: number;
  /** For programs, where the status alone is ambiguous. */
  error_type?: string | null;
  /** What to do next. */
  hint?: string | null;
  /** For people. */
  message: string;
  /** The end of the log of an application that does not start. */
  output?: string | null;
}

export interface EventImage {
  /** `desktop` or `mobile`. */
  device: string;
  height: number;
  url: string;
  width: number;
}

export interface FileList {
  /** Directories first, then by name. */
  entries: Array<Entry>;
  /** Relative to the project; empty for the project itself. */
  path: string;
  source: Source;
  /** The directory has more entries than are listed. */
  truncated: boolean;
}

export interface FileText {
  binary: boolean;
  /** The size of the whole file. */
  bytes: number;
  path: string;
  source: Source;
  /** Null for a binary file. */
  text: string | null;
  /** `text` is only the beginning of the file. */
  truncated: boolean;
}

export interface GenerationStatus {
  /** Increases with every build of the project. */
  build_version: number;
  /** The name of the build in the server's logs. */
  debug_id: string;
  error_message: string | null;
  job_id: string;
  /** Null while the sandbox is paused. */
  preview_url: string | null;
  sandbox_expires_at: string | null;
  sandbox_paused: boolean;
  /** The current stage, for people. */
  stage_label: string;
  status: JobStatus;
}

/** A build. */
export interface Job {
  /** Increases with every build of the project. */
  build_version: number;
  /** The cost of the model and the sandboxes. */
  cost_usd: number;
  created_at: string;
  /** The name of the build in the server's logs. */
  debug_id: string;
  /** What failed, and what to do next. */
  error_message: string | null;
  finished_at: string | null;
  goal: string;
  job_id: string;
  model: string;
  /** Null while the sandbox is paused. */
  preview_url: string | null;
  project_id: string;
  project_name: string;
  rebuilt_from: string | null;
  sandbox_id: string | null;
  sandbox_paused: boolean;
  /** Null while the sandbox is paused. */
  screenshot_url: string | null;
  /** The current stage, for people. */
  stage_label: string;
  status: JobStatus;
}

/** The status of a build. */
export type JobStatus = "queued" | "provisioning" | "building" | "ready" | "failed" | "cancelled";

export interface Jobs {
  /** The newest first. */
  jobs: Array<Job>;
}

/** The authenticated user. */
export interface Me {
  /** The remaining build credits. */
  credits: number;
  name: string;
}

/** What to build. */
export interface NewGeneration {
  /** Which tool calls need approval or are denied. The first matching rule decides; without one the call is allowed. */
  approvals?: Array<ApprovalRule> | null;
  branch?: string | null;
  /** The cost limit of the model. */
  budget_usd?: number | null;
  goal: string;
  /** As `sandbar run --model` takes it, if it is one of the offered models. */
  model?: string | null;
  /** The name of the project, which is created if it does not exist; or `project_id`. */
  name?: string | null;
  /** With `name`: the project must be new. The name of a project with builds is refused with 409, so that a build never starts from that project's files by accident. */
  new_project?: boolean | null;
  /** Completed in order, each committed and saved. */
  phases?: Array<string> | null;
  /** The project of the build; or `name`. */
  project_id?: string | null;
  /** A git repository to start from: an `https` URL. */
  repo?: string | null;
  template?: string | null;
}

export interface Paused {
  job_id: string;
  paused: boolean;
}

export interface PlanUsage {
  limit: number;
  provider: string;
  used: number;
  what: string;
}

/** The state of a preview. Reading it never resumes the sandbox. */
export interface Preview {
  preview_url: string | null;
  /** For people. */
  reason: string | null;
  state: PreviewStateView;
}

/** The state of a preview. */
export type PreviewStateView = "starting" | "active" | "blocked" | "paused" | "expired" | "unreachable" | "none";

export interface Project {
  /** Includes deleted builds. */
  cost_usd: number;
  created_at: string;
  name: string;
  project_id: string;
}

/** Whether the user has agreed to pay for it. */
export interface RebuildRequest {
  confirm?: boolean;
}

export interface RestoreRequest {
  /** The key of a snapshot, from the list of snapshots. */
  key: string;
}

/** A preview whose application responds. */
export interface Resumed {
  /** Null when the build has no page. */
  preview_url: string | null;
  sandbox_id: string;
}

/** What a policy decides about a call. */
export type RuleDecision = "allow" | "ask" | "deny";

export interface Screenshot {
  /** `desktop` or `mobile`. */
  device: string;
  height: number;
  id: string;
  /** Why it was taken, for people. */
  reason: string;
  taken_at: string;
  url: string;
  width: number;
}

export interface Screenshots {
  /** The newest first. */
  screenshots: Array<Screenshot>;
}

export interface Snapshot {
  bytes: number;
  created_at: string;
  files: number;
  key: string;
  /** Whether its archive was read back and compared. */
  verified: boolean;
}

export interface Snapshots {
  /** The newest first. */
  snapshots: Array<Snapshot>;
}

/** Where the files were read from. */
export type Source = "sandbox" | "snapshot";

/** A build that was queued or changed. */
export interface StartedBuild {
  job_id: string;
  status: JobStatus;
}

export type StopReason = "max_turns" | "max_tokens_total" | "max_cost" | "wall_clock" | "consecutive_timeouts" | "refusal" | "cancelled" | "sandbox_lost" | "completed" | "stuck" | "format_errors" | "context_exhausted" | "provider_error";

/** An event on a job's timeline: one JSON object. */
export type TimelineEvent = {
  /** The event's number, from 1, without gaps. Deltas are not recorded and have none. */
  seq?: number;
  ts: string;
  /** The model's turn. Events of the studio have none. */
  turn?: number;
} & (
  | { type: "run_started"; goal: string; model: string; resumed: boolean; run_id: string; workspace: string | null }
  | { type: "turn_started" }
  | { type: "text_delta"; text: string }
  | { type: "thinking_delta"; text: string }
  | { type: "message"; text: string }
  | { type: "tool_call_started"; args: unknown; id: string; tool: string }
  | { type: "tool_output_delta"; chunk: string; id: string; stream: string }
  | { type: "observed" }
  | { type: "approval_asked"; args: unknown; id: string; tool: string }
  | { type: "approval_answered"; allowed: boolean; id: string; reason: string | null }
  | { type: "nudge"; text: string }
  | { type: "pruned"; after: number; before: number; images: number; results: number }
  | { type: "compacted"; after: number; before: number }
  | { type: "usage"; cache_read_tokens: number; cache_write_tokens: number; context_tokens: number; context_window: number; cost_usd: number | null; input_tokens: number; output_tokens: number; total_cost_usd: number | null }
  | { type: "retry"; attempt: number; reason: string; wait_ms: number }
  | { type: "background_exited"; exit_code: number; output_path: string | null; task_id: string }
  | { type: "phase_started"; goal: string; of: number; phase: number }
  | { type: "phase_finished"; commit: string | null; phase: number; snapshot: string | null }
  | { type: "saved"; problem: string | null; snapshot: string | null }
  | { type: "paused"; problem: string | null }
  | { type: "run_finished"; background_tasks: Array<string>; cost_usd: number | null; files_changed: Array<string>; message: string; stop_reason: StopReason; text: string; turns: number; usage: TokenUsage }
  | { type: "job_status"; message?: string; preview_url: string | null; sandbox_paused: boolean; stage_label: string; status: JobStatus }
  | { type: "credit"; balance: number; change: number; reason: string }
  | { type: "notice"; text: string }
  | { type: "cost"; total_usd: number }
  | { type: "snapshot_saved"; bytes: number; files: number; key: string }
  | { type: "rotated"; from: string | null; reason: string; to: string }
  | { type: "moved"; from_provider: string; reason: string; to_provider: string }
  | { type: "paused"; automatic?: boolean }
  | { type: "resumed"; preview_url: string | null }
  | { type: "extended"; until: string }
  | { type: "restored"; saved_at: string; stamp: string }
  | { type: "deleted" }
  | { type: "phase_committed"; commit: string; message: string | null }
  | { type: "limit_warning"; percent: number; what: string }
  | { type: "screenshots"; images: Array<EventImage>; reason: string }
  | { type: "tool_call_finished"; code: string | null; duration_ms: number; id: string; images: Array<string>; is_error: boolean; output: string; summary: string; tool: string; truncated: boolean }
);

/** Token counts of one turn, or of several. */
export interface TokenUsage {
  cache_read_tokens: number;
  cache_write_tokens: number;
  /** Not read from the cache. */
  input_tokens: number;
  output_tokens: number;
}

/** Used amounts and their limits. */
export interface TotalUsage {
  /** The monthly budget, where one is configured. */
  budget_usd: number | null;
  month_usd: number;
  plans: Array<PlanUsage>;
  total_usd: number;
}

export interface Usage {
  lines: Array<UsageLine>;
  total_usd: number;
}

export interface UsageLine {
  cost_usd: number;
  model: string | null;
  provider: string | null;
  quantity: number;
  unit: string;
  what: string;
}
