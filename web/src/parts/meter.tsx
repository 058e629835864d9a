// The used share of a limit, as a bar with its figures. Without a limit, the figure only.

interface Props {
  label: string;
  used: number;
  limit: number | null;
  format: (value: number) => string;
}

export function Meter({ label, used, limit, format }: Props) {
  const share = limit && limit > 0 ? Math.min(used / limit, 1) : null;
  const level = share === null ? "" : share >= 0.95 ? "bad" : share >= 0.8 ? "warn" : "";
  return (
    <div class="meter">
      <div class="meter-head">
        <span>{label}</span>
        <span class="figure">
          {format(used)}
          {limit !== null && <span class="soft"> of {format(limit)}</span>}
        </span>
      </div>
      {share !== null && limit !== null && (
        <div
          class={`meter-bar ${level}`}
          role="meter"
          aria-label={label}
          aria-valuemin={0}
          aria-valuemax={limit}
          aria-valuenow={used}
          aria-valuetext={`${format(used)} of ${format(limit)}`}
        >
          <span style={{ width: `${Math.max(share * 100, used > 0 ? 2 : 0)}%` }} />
        </div>
      )}
    </div>
  );
}
