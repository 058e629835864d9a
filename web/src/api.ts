// The calls of /api. An error response becomes an `ApiError`; an unreachable server becomes
// `Offline`. The session is an http-only cookie; a foreign page cannot send the header below with
// it.

import type {
  ApprovalAnswered, Dashboard, Error as ErrorBody, FileList, FileText, Job, NewGeneration, Paused, Preview, Resumed, Screenshots,
  Snapshots, StartedBuild, Usage,
} from "./wire";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly body: ErrorBody,
  ) {
    super(body.message);
  }

  get errorType(): string | undefined {
    return this.body.error_type ?? undefined;
  }
}

/** No response: the server restarts, or the network is down. */
export class Offline extends Error {
  constructor() {
    super("Sandbar can't be reached right now.");
  }
}

/** The thing does not exist, or belongs to another user: a retry changes nothing. */
export function isMissing(error: unknown): boolean {
  return error instanceof ApiError && error.status === 404;
}

/** The message for a person about any failed call. */
export function explain(error: unknown): string {
  if (error instanceof ApiError) return [error.message, error.body.hint ?? ""].filter(Boolean).map(sentence).join(" ");
  return error instanceof Error ? error.message : String(error);
}

/** The server's messages are written for logs, too: they have neither a capital nor a full stop. */
function sentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

type SignedOut = () => void;
let signedOut: SignedOut = () => {};

/** Sets the action for an ended session. */
export function onSignedOut(action: SignedOut): void {
  signedOut = action;
}

/** The timeout of every call except the resume, which the server ends after 150 s. */
const DEADLINE_MS = 30_000;
const RESUME_DEADLINE_MS = 170_000;

export async function send(path: string, options: RequestInit & { deadline?: number } = {}): Promise<Response> {
  const { deadline = DEADLINE_MS, headers, ...rest } = options;
  let answer: Response;
  try {
    answer = await fetch(path, {
      credentials: "same-origin",
      headers: { accept: "application/json", "x-sandbar-csrf": "1", ...(headers as Record<string, string> | undefined) },
      signal: AbortSignal.timeout(deadline),
      ...rest,
    });
  } catch {
    throw new Offline();
  }
  if (answer.ok) return answer;
  if (answer.status === 401) signedOut();
  throw new ApiError(answer.status, await refusal(answer));
}

async function refusal(answer: Response): Promise<ErrorBody> {
  try {
    const body = (await answer.json()) as Partial<ErrorBody>;
    if (typeof body.message === "string") return { code: answer.status, ...body, message: body.message };
  } catch {
    // A proxy's page or an empty body: only the status is known.
  }
  return { code: answer.status, message: `The server answered ${answer.status} ${answer.statusText}`.trim() + "." };
}

async function get<T>(path: string): Promise<T> {
  return (await (await send(path)).json()) as T;
}

async function post<T>(path: string, body: unknown = {}, deadline = DEADLINE_MS): Promise<T> {
  const answer = await send(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    deadline,
  });
  return (await answer.json()) as T;
}

function query(values: Record<string, string | null | undefined>): string {
  const set = Object.entries(values).filter((pair): pair is [string, string] => pair[1] != null && pair[1] !== "");
  return set.length ? `?${new URLSearchParams(set)}` : "";
}

const job = (id: string) => `/api/jobs/${encodeURIComponent(id)}`;
const generation = (id: string) => `/api/generation/${encodeURIComponent(id)}`;

export const api = {
  dashboard: () => get<Dashboard>("/api/dashboard"),
  start: (build: NewGeneration) => post<StartedBuild>("/api/generation", build),
  job: (id: string) => get<Job>(job(id)),
  preview: (id: string) => get<Preview>(`${job(id)}/preview`),
  previewLoaded: async (id: string) => void (await send(`${job(id)}/preview/loaded`, { method: "POST" })),
  pause: (id: string) => post<Paused>(`${job(id)}/snapshot`, {}, RESUME_DEADLINE_MS),
  resume: (id: string) => post<Resumed>(`${generation(id)}/resume`, {}, RESUME_DEADLINE_MS),
  rebuild: (id: string) => post<StartedBuild>(`${generation(id)}/rebuild`, { confirm: true }),
  cancel: (id: string) => post<StartedBuild>(`${job(id)}/cancel`),
  remove: async (id: string) => void (await send(job(id), { method: "DELETE" })),
  screenshots: async (id: string) => (await get<Screenshots>(`${job(id)}/screenshots`)).screenshots,
  snapshots: async (id: string) => (await get<Snapshots>(`${job(id)}/snapshots`)).snapshots,
  restore: (id: string, key: string) => post<StartedBuild>(`${job(id)}/restore`, { key }),
  files: (id: string, path: string, snapshot: string | null) => get<FileList>(`${job(id)}/files${query({ path, snapshot })}`),
  file: (id: string, path: string, snapshot: string | null) => get<FileText>(`${job(id)}/file${query({ path, snapshot })}`),
  usage: (id: string) => get<Usage>(`${job(id)}/usage`),
  answer: (id: string, question: string, allow: boolean, reason?: string) =>
    post<ApprovalAnswered>(`${job(id)}/approvals/${encodeURIComponent(question)}`, {
      allow,
      ...(reason ? { reason } : {}),
    }),
  eventsPath: (id: string) => `${job(id)}/events`,
  terminalUrl: (id: string) => `${location.origin.replace(/^http/, "ws")}${job(id)}/terminal`,
};

/** Signs in with a token. The response to a valid token is a redirect, which is not followed. */
export async function signIn(token: string): Promise<"signed_in" | "refused"> {
  let answer: Response;
  try {
    answer = await fetch("/login", {
      method: "POST",
      body: new URLSearchParams({ token }),
      headers: { "x-sandbar-csrf": "1" },
      redirect: "manual",
      credentials: "same-origin",
      signal: AbortSignal.timeout(DEADLINE_MS),
    });
  } catch {
    throw new Offline();
  }
  if (answer.type === "opaqueredirect" || answer.ok) return "signed_in";
  if (answer.status === 401 || answer.status === 403) return "refused";
  throw new ApiError(answer.status, await refusal(answer));
}

export async function signOut(): Promise<void> {
  await fetch("/logout", {
    method: "POST",
    headers: { "x-sandbar-csrf": "1" },
    redirect: "manual",
    credentials: "same-origin",
    signal: AbortSignal.timeout(DEADLINE_MS),
  });
}
