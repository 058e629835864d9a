import type { ComponentChildren } from "preact";
import { go } from "../route";

interface Props {
  to: string;
  class?: string;
  label?: string;
  children: ComponentChildren;
}

/** A link that navigates without a page load; with a modifier key the browser handles it. */
export function Link({ to, class: name, label, children }: Props) {
  const onClick = (event: MouseEvent) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || event.button !== 0) return;
    event.preventDefault();
    go(to);
  };
  return <a href={to} class={name} aria-label={label} onClick={onClick}>{children}</a>;
}
