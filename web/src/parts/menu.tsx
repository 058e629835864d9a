// A few actions behind one button. Escape and a click outside close it; arrow keys move in it.

import { useEffect, useRef, useState } from "preact/hooks";
import { Icon } from "./icon";

export interface MenuItem {
  title: string;
  danger?: boolean;
  action: () => void;
}

export function Menu({ label, items }: { label: string; items: MenuItem[] }) {
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (!open) return;
    box.current?.querySelector<HTMLElement>("[role=menuitem]")?.focus();
    const outside = (event: Event) => {
      if (!box.current?.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", outside);
    return () => document.removeEventListener("pointerdown", outside);
  }, [open]);
  const close = () => {
    setOpen(false);
    button.current?.focus();
  };
  const onKey = (event: KeyboardEvent) => {
    if (!open) return;
    if (event.key === "Escape") return close();
    if (event.key === "Tab") return setOpen(false);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const all = [...(box.current?.querySelectorAll<HTMLElement>("[role=menuitem]") ?? [])];
    const at = all.indexOf(document.activeElement as HTMLElement);
    all[(at + step + all.length) % all.length]?.focus();
  };
  return (
    <div class="menu" ref={box} onKeyDown={onKey}>
      <button ref={button} type="button" class="button quiet icon-only" aria-label={label} aria-haspopup="menu" aria-expanded={open} onClick={() => setOpen(!open)}>
        <Icon name="dots" size={18} />
      </button>
      {open && (
        <div class="menu-list" role="menu" aria-label={label}>
          {items.map((item) => (
            <button key={item.title} type="button" role="menuitem" tabIndex={-1} class={item.danger ? "danger" : ""} onClick={() => {
              close();
              item.action();
            }}>
              {item.title}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}
