// One tooltip for all canvases: it follows the pointer and stays inside the window.

import { h } from "./dom.js";

const tip = h("div", { class: "tooltip", role: "tooltip", hidden: true });

export function install() { document.body.append(tip); }

export function show(content, x, y) {
  tip.replaceChildren(content);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 14 + width > window.innerWidth ? Math.max(4, x - width - 14) : x + 14;
  const top = y + 14 + height > window.innerHeight ? Math.max(4, y - height - 14) : y + 14;
  tip.style.setProperty("left", `${left}px`);
  tip.style.setProperty("top", `${top}px`);
}

export function hide() { tip.hidden = true; }
