// The page: header, summary, timelines, graph, causes.

import { button, h } from "./dom.js";
import { graphSection } from "./graph.js";
import { load } from "./model.js";
import { setPalette, themeChanged } from "./paint.js";
import { timelines } from "./timelines.js";
import * as tooltip from "./tooltip.js";
import { summary, why } from "./why.js";

const THEMES = ["auto", "light", "dark"];

function makeBus() {
  const listeners = [];
  return {
    onVertex: (listener) => listeners.push(listener),
    vertex: (trace, vertex, from) => { for (const listener of listeners) listener(trace, vertex, from); },
  };
}

function stored() {
  try { return localStorage.getItem("doppler-theme"); } catch { return null; }
}

function themeButton(redraw) {
  const control = button("", "Theme", () => set(THEMES[(THEMES.indexOf(current) + 1) % THEMES.length]));
  let current = THEMES.includes(stored()) ? stored() : "auto";
  function set(name) {
    current = name;
    document.documentElement.dataset.theme = name;
    control.textContent = { auto: "◐ auto", light: "☀ light", dark: "☾ dark" }[name];
    control.setAttribute("aria-label", `Theme: ${name}`);
    control.title = `Theme: ${name}`;
    try { localStorage.setItem("doppler-theme", name); } catch { /* a file may not be allowed to store */ }
    redraw();
  }
  return { control, set, get: () => current };
}

async function main() {
  const data = await load();
  setPalette(data.colours);
  const bus = makeBus();
  const parts = [timelines(data, bus), graphSection(data, bus), why(data)].filter(Boolean);
  const redraw = () => { themeChanged(); for (const part of parts) part.redraw?.(); };
  const theme = themeButton(redraw);
  const links = [["timelines", "Timelines"], data.graph ? ["graph", "Graph"] : null, ["why", "Why"]].filter(Boolean);
  const about = data.traces.map((trace) => trace.graph).every((name) => name === data.traces[0].graph)
    ? `${data.vertices[0].name.length} vertices on ${data.traces[0].devices.length} devices` : "";
  const app = document.getElementById("app");
  app.replaceChildren(
    h("a", { class: "skip", href: "#timelines" }, "Skip to the timelines"),
    h("header", {}, h("div", { class: "head" }, h("h1", {}, data.title), h("p", { class: "muted" }, about)),
      h("nav", { "aria-label": "Sections" }, links.map(([id, name]) => h("a", { href: `#${id}` }, name))), theme.control),
    h("main", {}, summary(data), parts.map((part) => part.section)),
    h("footer", {}, "Written by ", h("code", {}, "dop report"), ". This file is complete: it loads nothing."));
  tooltip.install();
  theme.set(theme.get());
  for (const part of parts) part.start?.();
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; redraw(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let before = theme.get();
  window.addEventListener("beforeprint", () => { before = theme.get(); theme.set("light"); });
  window.addEventListener("afterprint", () => theme.set(before));
  window.report = { data, timelines: parts[0].probe, graph: data.graph ? parts[1].probe : null };
  document.documentElement.dataset.ready = "yes";
}

main().catch((error) => {
  document.getElementById("app").textContent = `This report cannot be shown: ${error}`;
  throw error;
});
