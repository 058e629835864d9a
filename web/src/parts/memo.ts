// Renders again only when a property is another object: a long timeline must not be rendered for
// every delta.

import { Component, h, type ComponentChild } from "preact";

export function memo<Props extends object>(render: (props: Props) => ComponentChild) {
  return class Memo extends Component<Props> {
    override shouldComponentUpdate(next: Readonly<Props>): boolean {
      const before = this.props as Record<string, unknown>;
      const after = next as Record<string, unknown>;
      const names = new Set([...Object.keys(before), ...Object.keys(after)]);
      return [...names].some((name) => before[name] !== after[name]);
    }

    override render() {
      return h(render as (props: object) => ComponentChild, this.props as object);
    }
  };
}
