// The section of timelines: one below the other on the same axis, with their controls.

import { select as pick } from "d3-selection";
import { zoomIdentity } from "d3-zoom";
import { button, checkbox, h, select } from "./dom.js";
import { sameAssignment } from "./model.js";
import { swatch } from "./paint.js";
import { MAX_LINKS } from "./lanes.js";
import { Timeline } from "./timeline.js";

const MAX_LEGEND = 24;

export function timelines(data, bus) {
  const ranks = new Map();
  const live = h("p", { class: "sr-only", "aria-live": "polite" });
  const panel = h("div", { class: "panel", hidden: true });
  const legend = h("ul", { class: "legend", "aria-label": "Colours" });
  const stack = h("div", {});
  let charts = [], arranged = () => {};
  const end = () => Math.max(...data.traces.map((t) => Math.max(t.makespan, t.bound || 0)), 1e-30) * 1.005;
  const shared = {
    bus, end: end(), target: null,
    colour: "kind", chain: true, transfers: usedLinks(data) > MAX_LINKS ? "device" : "link",
    rank: (trace, key) => {
      const name = `${trace.vertices}/${key}`;
      if (!ranks.has(name)) ranks.set(name, byTime(data, trace, key));
      return ranks.get(name);
    },
    zoomed(transform) { for (const chart of charts) chart.sync(transform); },
    chosen(chart, found) {
      for (const one of charts) if (one !== chart) one.selected = null;
      for (const one of charts) one.draw();
      panel.hidden = !found;
      live.textContent = chart.say();
      if (found) panel.replaceChildren(chart.card(found));
      bus.vertex(found ? found.track.trace : null, found ? found.track.trace.tasks.vertex[found.row] : -1, "timeline");
    },
  };
  const redraw = () => { for (const chart of charts) chart.draw(); drawLegend(data, shared, legend); };
  const refresh = (trace) => {
    shared.end = end();
    for (const chart of charts) { chart.refresh(trace); chart.draw(); }
  };
  const arrange = (value) => {
    const groups = value === "stacked" ? data.traces.map((trace) => [trace])
      : [value.split("/").map((i) => data.traces[i])];
    charts = groups.map((traces) => new Timeline(data, traces, shared));
    stack.replaceChildren(...charts.map((chart) => chart.element));
    for (const chart of charts) arranged(chart);
    redraw();
  };
  const scale = (factor) => charts[0] && pick(charts[0].canvas).call(charts[0].zoom.scaleBy, factor);
  const hasMeta = data.vertices.some((table) => table.meta);
  const colours = [["kind", "kind"], ...(hasMeta ? [["meta", "meta-op"]] : []), ["device", "device"]];
  const pairs = pairsOf(data);
  const transfers = select("Transfers", [["link", "by link"], ["device", "by device"], ["none", "hidden"]],
    (value) => { shared.transfers = value; redraw(); });
  transfers.control.value = shared.transfers;
  const bar = h("div", { class: "toolbar", role: "group", "aria-label": "Timeline controls" },
    select("Colour by", colours, (value) => { shared.colour = value; redraw(); }).element,
    pairs.length ? select("Arrange", [["stacked", "one below the other"], ...pairs], arrange).element : null,
    checkbox("critical chain", shared.chain, (on) => { shared.chain = on; redraw(); }),
    transfers.element,
    h("span", { class: "group" },
      button("+", "Zoom in", () => scale(2)), button("−", "Zoom out", () => scale(0.5)),
      button("All", "Show all", () => charts[0] && pick(charts[0].canvas).call(charts[0].zoom.transform, zoomIdentity))));
  const section = h("section", { id: "timelines", "aria-labelledby": "timelines-title" },
    h("h2", { id: "timelines-title" }, "Timelines"), bar, legend,
    h("p", { class: "hint" }, "Drag to pan. Click a timeline, then the wheel zooms; Ctrl and the wheel always do."),
    stack, panel, live);
  bus.onVertex((trace, vertex, from) => {
    if (from === "timeline") return;
    for (const chart of charts) {
      const found = chart.traces.find((one) => one === trace) && vertex >= 0 && trace.execOf[vertex] >= 0;
      chart.selected = found ? { track: { trace, which: chart.traces.indexOf(trace) }, row: trace.execOf[vertex], vertex } : null;
      if (chart.x) chart.draw();
    }
  });
  bus.onSelection(() => { for (const chart of charts) if (chart.x) chart.draw(); });
  // Mark the lane of a device, or none, as where the selection would be dropped.
  const aim = (device) => { if (shared.target !== device) { shared.target = device; redraw(); } };
  return { section, redraw, refresh, aim, start: () => arrange("stacked"), charts: () => charts, onArrange: (listener) => { arranged = listener; }, probe: () => charts };
}

// The rank of each kind or meta-op by the time it takes: the first get the clearest colours.
function byTime(data, trace, key) {
  const table = trace.table;
  const time = new Float64Array(table[`${key}s`].length);
  for (const one of data.traces) {
    if (one.vertices !== trace.vertices) continue;
    for (let row = 0; row < one.size; row++)
      if (one.tasks.link[row] < 0) time[table[key][one.tasks.vertex[row]]] += one.tasks.end[row] - one.tasks.begin[row];
  }
  const order = [...time.keys()].sort((a, b) => time[b] - time[a]);
  const rank = new Int32Array(time.length);
  order.forEach((index, i) => { rank[index] = i; });
  rank.used = time;
  return rank;
}

function drawLegend(data, shared, legend) {
  const first = data.traces[0];
  let entries;
  if (shared.colour === "device") entries = first.devices.map((device, d) => [d, device.name]);
  else {
    const key = shared.colour === "meta" && first.table.meta ? "meta" : "kind";
    const rank = shared.rank(first, key);
    entries = first.table[`${key}s`].map((name, i) => [rank[i], name, rank.used[i]])
      .filter((entry) => entry[2] > 0).sort((a, b) => a[0] - b[0]);
    entries.push([-1, "transfer"]);
  }
  const hidden = entries.length - MAX_LEGEND;
  legend.replaceChildren(...entries.slice(0, MAX_LEGEND).map(([number, name]) => h("li", {}, swatch(number), name)),
    hidden > 0 ? h("li", {}, `and ${hidden} more`) : "");
}

const usedLinks = (data) => Math.max(...data.traces.map((trace) => trace.linkBytes.filter((bytes) => bytes > 0).length));

// What may lie over each other: traces of one assignment, and a what-if over what it began with.
function pairsOf({ traces, view }) {
  const pairs = [];
  traces.forEach((a, i) => traces.forEach((b, j) => {
    const changes = view?.whatIf && j === traces.length - 1 && a.vertices === b.vertices && a.devices.length === b.devices.length;
    if (i < j && (changes || sameAssignment(a, b))) pairs.push([`${i}/${j}`, `${a.name} over ${b.name}`]);
  }));
  return pairs;
}
