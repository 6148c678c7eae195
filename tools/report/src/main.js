// The page: header, summary, timelines, graph, causes.

import { button, h } from "./dom.js";
import { graphSection } from "./graph.js";
import { live } from "./live.js";
import { load } from "./model.js";
import { setPalette, themeChanged } from "./paint.js";
import { timelines } from "./timelines.js";
import * as tooltip from "./tooltip.js";
import { training } from "./training.js";
import { whatIf } from "./whatif.js";
import { summary, why } from "./why.js";

const THEMES = ["auto", "light", "dark"];

// What views tell each other: the vertex looked at, and where things can be moved, the selection.
function makeBus() {
  const listeners = [], watchers = [];
  return {
    onVertex: (listener) => listeners.push(listener),
    vertex: (trace, vertex, from) => { for (const listener of listeners) listener(trace, vertex, from); },
    selection: new Set(),
    onSelection: (watcher) => watchers.push(watcher),
    selectionChanged: () => { for (const watcher of watchers) watcher(); },
    pick: () => {}, takes: () => false, dragged: () => false, focusMove: () => false, // until there is a what-if
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
  const any = data.traces.length > 0;
  const views = { timelines: any && timelines(data, bus), graph: any && graphSection(data, bus), why: any && why(data), training: training(data) };
  const top = any ? summary(data) : null;
  const change = whatIf(data, bus, { timelines: views.timelines, graph: views.graph, top, why: views.why });
  const watch = live(data, { training: views.training, whatIf: change });
  const parts = [change, ...Object.values(views)].filter(Boolean);
  const redraw = () => { themeChanged(); for (const part of parts) part.redraw?.(); };
  const theme = themeButton(redraw);
  const names = { whatif: "What if", timelines: "Timelines", graph: "Graph", why: "Why", training: "Training" };
  const links = Object.entries(names).filter(([id]) => (id === "whatif" ? change : views[id]));
  const about = any && data.traces.every((trace) => trace.graph === data.traces[0].graph)
    ? `${data.vertices[0].name.length} vertices on ${data.traces[0].devices.length} devices` : "";
  const app = document.getElementById("app");
  app.replaceChildren(
    h("a", { class: "skip", href: `#${links[0][0]}` }, "Skip to the charts"),
    h("header", {}, h("div", { class: "head" }, h("h1", {}, data.title), h("p", { class: "muted" }, about)),
      h("nav", { "aria-label": "Sections" }, links.map(([id, name]) => h("a", { href: `#${id}` }, name))), theme.control),
    h("main", {}, watch?.banner, top?.section, parts.map((part) => part.section), change?.bar),
    data.view ? h("footer", {}, "Shown by ", h("code", {}, "dop view"), ", from this machine only.")
      : h("footer", {}, "Written by ", h("code", {}, "dop report"), ". This file is complete: it loads nothing."));

  tooltip.install();
  theme.set(theme.get());
  for (const part of [...Object.values(views), change, watch]) part?.start?.();
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; redraw(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let before = theme.get();
  window.addEventListener("beforeprint", () => { before = theme.get(); theme.set("light"); });
  window.addEventListener("afterprint", () => theme.set(before));
  window.report = { data, timelines: views.timelines?.probe, graph: views.graph?.probe, whatIf: change };
  document.documentElement.dataset.ready = "yes";
}

main().catch((error) => {
  document.getElementById("app").textContent = `This report cannot be shown: ${error}`;
  throw error;
});
