export function Spinner({ size = 18 }: { size?: number }) {
  return <span class="spinner" style={{ width: `${size}px`, height: `${size}px` }} aria-hidden="true" />;
}

/** Shown while something is loading, or why it could not be loaded. */
export function Waiting({ what }: { what: string }) {
  return <p class="waiting" role="status"><Spinner />{what}</p>;
}

export function Problem({ message, onRetry }: { message: string; onRetry?: () => void }) {
  return (
    <div class="empty" role="alert">
      <p>{message}</p>
      {onRetry && <button type="button" class="button" onClick={onRetry}>Try again</button>}
    </div>
  );
}
