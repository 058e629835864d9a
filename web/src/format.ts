// Formats figures and times for people.

export function money(usd: number | null | undefined): string {
  if (usd == null) return "–";
  if (usd === 0) return "$0.00";
  if (usd < 0.01) return "<$0.01";
  return `$${usd.toFixed(2)}`;
}

export function bytes(count: number): string {
  if (count < 1024) return `${count} B`;
  if (count < 1024 * 1024) return `${(count / 1024).toFixed(1)} kB`;
  if (count < 1024 ** 3) return `${(count / 1024 ** 2).toFixed(1)} MB`;
  return `${(count / 1024 ** 3).toFixed(1)} GB`;
}

export function thousands(count: number): string {
  if (count < 1000) return String(Math.round(count));
  if (count < 1_000_000) return `${(count / 1000).toFixed(count < 10_000 ? 1 : 0)}k`;
  return `${(count / 1_000_000).toFixed(1)}M`;
}

/** A quantity with as many digits as are useful. */
export function quantity(value: number): string {
  if (value > 0 && value < 0.005) return "<0.01";
  return value >= 10_000 ? thousands(value) : String(Math.round(value * 100) / 100);
}

/** The unit of a quantity: "1 sandbox", "2 sandboxes". */
export function unit(value: number, many: string): string {
  return quantity(value) === "1" ? many.replace(/(?<=x)es$|s$/, "") : many;
}

/** The file name of a script; its path means nothing to the reader. */
export function modelName(model: string): string {
  return model.replace(/^scripted:.*\//, "scripted:");
}

export function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function duration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

/** How long ago, in the largest unit that fits. */
export function age(then: string, now: number): string {
  const seconds = Math.max(0, Math.round((now - Date.parse(then)) / 1000));
  if (seconds < 10) return "just now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  const days = Math.floor(seconds / 86_400);
  return days === 1 ? "yesterday" : days < 30 ? `${days} days ago` : new Date(then).toLocaleDateString("en-GB");
}

export function clock(ts: string): string {
  const time = new Date(ts);
  return Number.isNaN(time.getTime()) ? "" : time.toLocaleTimeString("en-GB");
}

export function moment(ts: string): string {
  const time = new Date(ts);
  if (Number.isNaN(time.getTime())) return ts;
  return time.toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
}
