// Tabs by the ARIA practices: one stop for Tab, arrow keys between them, every panel named by its
// tab. Panels stay mounted once they were shown: a preview's frame must not reload because the user
// viewed the files.

import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";

export interface Tab<Name extends string> {
  name: Name;
  title: string;
  panel: ComponentChildren;
}

interface Props<Name extends string> {
  label: string;
  tabs: Tab<Name>[];
  current: Name;
  onChange: (name: Name) => void;
}

export function Tabs<Name extends string>({ label, tabs, current, onChange }: Props<Name>) {
  const list = useRef<HTMLDivElement>(null);
  const shown = useRef(new Set<Name>());
  shown.current.add(current);
  const onKey = (event: KeyboardEvent) => {
    const index = tabs.findIndex((tab) => tab.name === current);
    const target = {
      ArrowRight: (index + 1) % tabs.length,
      ArrowLeft: (index + tabs.length - 1) % tabs.length,
      Home: 0,
      End: tabs.length - 1,
    }[event.key];
    const tab = target === undefined ? undefined : tabs[target];
    if (!tab) return;
    event.preventDefault();
    onChange(tab.name);
    list.current?.querySelector<HTMLElement>(`#tab-${tab.name}`)?.focus();
  };
  return (
    <div class="tabs">
      <div class="tablist" role="tablist" aria-label={label} ref={list} onKeyDown={onKey}>
        {tabs.map((tab) => (
          <button
            key={tab.name}
            type="button"
            role="tab"
            id={`tab-${tab.name}`}
            aria-selected={tab.name === current}
            aria-controls={`panel-${tab.name}`}
            tabIndex={tab.name === current ? 0 : -1}
            onClick={() => onChange(tab.name)}
          >
            {tab.title}
          </button>
        ))}
      </div>
      {tabs.map((tab) => (
        <div
          key={tab.name}
          class={`panel panel-${tab.name}`}
          role="tabpanel"
          id={`panel-${tab.name}`}
          aria-labelledby={`tab-${tab.name}`}
          hidden={tab.name !== current}
        >
          {shown.current.has(tab.name) && tab.panel}
        </div>
      ))}
    </div>
  );
}
