import type { ComponentChildren } from "preact";
import { signOut } from "../api";
import { go } from "../route";
import { Logo } from "./icon";
import { Link } from "./link";

export function TopBar({ children }: { children?: ComponentChildren }) {
  return (
    <header class="topbar">
      <Link class="brand" to="/" label="Sandbar, all builds"><Logo />Sandbar</Link>
      <div class="topbar-middle">{children}</div>
      <button type="button" class="button quiet" onClick={() => void signOut().finally(() => go("/login"))}>Sign out</button>
    </header>
  );
}
