import { useState } from "preact/hooks";
import { explain, signIn } from "../api";
import { Logo } from "../parts/icon";
import { go } from "../route";

export function LoginPage({ next }: { next: string }) {
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  // A plain form that also posts without scripts, and works with password managers.
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const token = String(new FormData(event.currentTarget as HTMLFormElement).get("token") ?? "").trim();
    setBusy(true);
    setProblem(null);
    try {
      if ((await signIn(token)) === "signed_in") go(next);
      else setProblem("This token is not known here. Check that it was copied whole.");
    } catch (error) {
      setProblem(explain(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <main class="login">
      <form class="card login-card" method="post" action="/login" onSubmit={submit}>
        <Logo size={40} />
        <h1>Sign in to Sandbar</h1>
        <p class="soft"><code>sandbar env</code> on the server prints your token, as <code>SANDBAR_TOKEN</code>.</p>
        <label class="field">
          <span>Token</span>
          <input
            name="token" type="password" required autoComplete="current-password" spellcheck={false} autoFocus
            placeholder="sbt_…" aria-invalid={problem !== null} aria-describedby={problem ? "login-problem" : undefined}
          />
        </label>
        {problem && <p class="problem" id="login-problem" role="alert">{problem}</p>}
        <button class="button primary wide" disabled={busy}>{busy ? "Signing in…" : "Sign in"}</button>
        <p class="soft small">Lost it? <code>sandbar user token NAME</code> on the server makes a new one.</p>
      </form>
    </main>
  );
}
