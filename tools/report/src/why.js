// Why the traces are as long as they are: numbers, the critical chain, devices and links over time.

import { area, curveStepAfter } from "d3-shape";
import { amount, h, keepingOpen, percent, s, seconds, select, table } from "./dom.js";
import { deviceName, isTransfer, moved, sameAssignment, title } from "./model.js";
import { swatch } from "./paint.js";
import { pairUp } from "./timeline.js";

const CAUSES = [
  ["compute_s", "compute", "operations that the next one needed"],
  ["transfer_s", "transfer", "tensors on their way to the next one"],
  ["device_s", "waiting for a device", "ready, but the device was busy"],
  ["link_s", "waiting for a link", "ready, but the link was busy"],
  ["host_s", "host and other", "dispatch, completion, memory"],
];
const MAX_ROWS = 200;

export function why(data) {
  const compared = { from: 0, to: 1 };
  const parts = () => [h("h2", { id: "why-title" }, "Why"), chainBars(data), chainTables(data),
    overTime(data, "Utilization over time", (t) => t.series, () => 1, percent),
    data.traces.some((t) => t.memory) ? overTime(data, "Memory over time", (t) => t.memory && t.memory.bytes, top, (v) => amount(v, "B")) : "",
    links(data), differences(data, compared) || ""];
  const section = h("section", { id: "why", "aria-labelledby": "why-title" }, parts());
  let waiting = 0;
  const refresh = () => { // later: what can be seen at once comes first
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      keepingOpen(section, () => section.replaceChildren(...parts()));
    }, 60);
  };
  return { section, refresh };
}

export function summary(data) {
  const section = h("section", { id: "summary", "aria-labelledby": "summary-title" });
  const refresh = () => section.replaceChildren(h("h2", { id: "summary-title", class: "sr-only" }, "Summary"), summaryCards(data),
    data.leftOut.length ? h("p", { class: "hint left-out" }, `To keep this page small: ${data.leftOut.join("; ")}.`) : "");
  refresh();
  return { section, refresh };
}

function summaryCards(data) {
  const best = Math.min(...data.traces.map((trace) => trace.makespan));
  return h("div", { class: "cards" }, data.traces.map((trace) => {
    const mean = trace.utilization.reduce((a, b) => a + b, 0) / trace.utilization.length;
    const facts = [["mean utilization", percent(mean)], ["moved", amount(trace.bytesMoved, "B")]];
    if (trace.bound) facts.unshift(["lower bound", seconds(trace.bound)], ["gap", percent(trace.makespan / trace.bound - 1)]);
    const slower = trace.makespan > best ? `${(trace.makespan / best).toFixed(2)}× the shortest` : data.traces.length > 1 ? "the shortest" : "makespan";
    return h("article", { class: "summary" }, h("h3", {}, trace.name),
      h("p", { class: "big" }, seconds(trace.makespan)), h("p", { class: "muted" }, slower),
      h("dl", {}, facts.map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]).flat()));
  }));
}

function chainBars(data) {
  const longest = Math.max(...data.traces.map((trace) => trace.makespan), 1e-30);
  const bar = (trace) => {
    let x = 0;
    return s("svg", { viewBox: "0 0 1000 28", preserveAspectRatio: "none", class: "bar", role: "img",
      "aria-label": `${trace.name}: ${CAUSES.map(([key, name]) => `${name} ${seconds(trace.chainTime[key])}`).join(", ")}` },
    CAUSES.map(([key, name], i) => {
      const width = (1000 * trace.chainTime[key]) / longest;
      const part = s("rect", { x, y: 2, width: Math.max(width, 0), height: 24, class: `cause cause${i}` }, s("title", {}, `${name}: ${seconds(trace.chainTime[key])}`));
      x += width;
      return part;
    }));
  };
  const legend = h("ul", { class: "legend", "aria-label": "Causes" }, CAUSES.map(([, name, text], i) =>
    h("li", { title: text }, s("svg", { class: "swatch", width: 12, height: 12, "aria-hidden": "true" }, s("rect", { width: 12, height: 12, class: `cause cause${i}` })), name)));
  return h("div", {}, h("h3", {}, "Where the critical chain spends its time"), legend,
    data.traces.map((trace) => h("div", { class: "bar-row" }, h("span", { class: "bar-name" }, trace.name), bar(trace))),
    table("Seconds of the critical chain by cause", ["trace", "makespan", ...CAUSES.map(([, name]) => name)],
      data.traces.map((trace) => [trace.name, seconds(trace.makespan), ...CAUSES.map(([key]) =>
        `${seconds(trace.chainTime[key])} (${percent(trace.makespan ? trace.chainTime[key] / trace.makespan : 0)})`)])));
}

function chainTables(data) {
  return h("div", {}, data.traces.map((trace) => h("details", {},
    h("summary", {}, `Critical chain of ${trace.name}: ${trace.chainTasks} tasks`),
    table(`The critical chain of ${trace.name}`, ["task", "what", "where", "waited for", "begin", "takes"],
      trace.chain.slice(0, MAX_ROWS).map((row) => {
        const { tasks } = trace, transfer = isTransfer(trace, row);
        return [title(trace, row), transfer ? "transfer" : trace.table.kinds[trace.table.kind[tasks.vertex[row]]],
          transfer ? trace.links[tasks.link[row]].name : trace.devices[tasks.device[row]].name,
          trace.reasons[tasks.reason[row]], seconds(tasks.begin[row]), seconds(tasks.end[row] - tasks.begin[row])];
      }), 4),
    trace.chain.length > MAX_ROWS ? h("p", { class: "hint" }, `and ${trace.chain.length - MAX_ROWS} more`) : null)));
}

const top = (trace) => trace.memory.bytes.reduce((most, values) => Math.max(most, ...values), 1);

function overTime(data, heading, seriesOf, limitOf, text) {
  const strip = (trace, values, d, limit) => {
    const wide = values.length;
    const shape = area().x((_, i) => i).y0(30).y1((v) => 30 - (28 * v) / limit).curve(curveStepAfter)([...values, values[wide - 1]]);
    const mean = values.reduce((a, b) => a + b, 0) / wide;
    const high = Math.max(...values);
    const room = limit !== 1 && data.machine && data.machine.devices[trace.devices[d].name];
    return h("div", { class: "strip" }, h("span", { class: "strip-name" }, swatch(d), trace.devices[d].name),
      s("svg", { viewBox: `0 0 ${wide} 30`, preserveAspectRatio: "none", role: "img", "aria-label": `${trace.name}, ${trace.devices[d].name}: mean ${text(mean)}, most ${text(high)}` },
        s("path", { d: shape })), h("span", { class: "strip-value" }, text(limit === 1 ? mean : high), room ? ` of ${text(room)}` : ""));
  };
  return h("div", {}, h("h3", {}, heading), h("div", { class: "columns" }, data.traces.filter(seriesOf).map((trace) =>
    h("div", { class: "strips" }, h("h4", {}, trace.name), seriesOf(trace).map((values, d) => strip(trace, values, d, limitOf(trace)))))));
}

function links(data) {
  const classes = [...new Set(data.traces.flatMap((trace) => Object.keys(trace.classBytes)))];
  const speeds = data.machine && data.machine.links;
  return h("div", {}, h("h3", {}, "Bytes by link and class"),
    table("Bytes read, by where they came from", ["trace", ...classes.map((name) => name.replace("-", " ")), "transfers overlap compute"],
      data.traces.map((trace) => [trace.name, ...classes.map((name) => amount(trace.classBytes[name] || 0, "B")), percent(trace.overlap)])),
    data.traces.map((trace) => {
      const used = trace.links.map((link, i) => [link, trace.linkBytes[i], trace.linkUtilization[i]])
        .filter((row) => row[1] > 0).sort((a, b) => b[1] - a[1]);
      return h("details", {}, h("summary", {}, `Links of ${trace.name}: ${used.length} used`),
        table(`Links of ${trace.name}`, ["link", "bytes", "time in use", ...(speeds ? ["bandwidth"] : [])],
          used.slice(0, MAX_ROWS).map(([link, bytes, share]) =>
            [link.name, amount(bytes, "B"), percent(share), ...(speeds ? [speeds[link.name] ? amount(speeds[link.name], "B/s") : "–"] : [])])));
    }));
}

function differences(data, compared) {
  if (data.traces.length < 2) return null;
  const body = h("div", {});
  const options = data.traces.map((trace, i) => [i, trace.name]);
  const show = () => {
    Object.assign(compared, { from: a.control.value, to: b.control.value });
    body.replaceChildren(difference(data, data.traces[a.control.value], data.traces[b.control.value]));
  };
  const a = select("From", options, show), b = select("To", options, show);
  a.control.value = compared.from;
  b.control.value = compared.to;
  const block = h("div", {}, h("h3", {}, "Differences"), h("div", { class: "toolbar", role: "group", "aria-label": "Traces to compare" }, a.element, b.element), body);
  show();
  return block;
}

function difference(data, a, b) {
  if (a === b) return h("p", { class: "hint" }, "Choose two traces.");
  if (a.vertices !== b.vertices) return h("p", { class: "hint" }, "These traces are of different graphs.");
  if (sameAssignment(a, b)) return changed(a, b);
  const vertices = moved(a, b);
  const takes = (trace, v) => (trace.execOf[v] < 0 ? 0 : trace.tasks.end[trace.execOf[v]] - trace.tasks.begin[trace.execOf[v]]);
  vertices.sort((v, w) => takes(b, w) - takes(b, v) || v - w);
  const device = (trace, v) => deviceName(trace, trace.deviceOf[v]);
  return h("div", {}, h("p", {}, `${vertices.length} of ${a.deviceOf.filter((d) => d >= 0).length} vertices are on another device; those that take longest come first.`),
    table(`Vertices that moved from ${a.name} to ${b.name}`, ["vertex", `in ${a.name}`, `in ${b.name}`, "takes"],
      vertices.slice(0, MAX_ROWS).map((v) => [a.table.name[v], device(a, v), device(b, v), seconds(takes(b, v))]), 3));
}

function changed(a, b) {
  const pairs = pairUp([a, b]);
  const rows = [...b.tasks.vertex.keys()].map((row) => [row, pairs.change(row)]).filter((entry) => entry[1] !== null);
  const takes = (row) => b.tasks.end[row] - b.tasks.begin[row];
  const excess = ([row, change]) => Math.abs(takes(row) - takes(row) / (1 + change));
  rows.sort((p, q) => excess(q) - excess(p));
  return h("div", {}, h("p", {}, `Both have the same assignment; ${b.name} takes ${percent(b.makespan / a.makespan - 1)} more. Tasks that differ most in seconds come first.`),
    table(`Tasks of ${a.name} and ${b.name}`, ["task", `in ${a.name}`, `in ${b.name}`, "change"],
      rows.slice(0, 50).map(([row, change]) => [title(b, row), seconds(takes(row) / (1 + change)), seconds(takes(row)), `${change >= 0 ? "+" : "−"}${percent(Math.abs(change))}`])));
}
