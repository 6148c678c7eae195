// What there is to say of one task: in the tooltip, in the panel, and aloud.

import { amount, h, seconds } from "./dom.js";
import { isTransfer, title } from "./model.js";
import { readsOf } from "./net.js";

const MAX_INPUTS = 12;

export function inputsOf(data, trace, row) {
  const { tasks } = trace;
  if (isTransfer(trace, row)) return [tasks.vertex[row]];
  if (data.graph) {
    const { pointers, producers } = readsOf(data.graph);
    const v = tasks.vertex[row];
    return [...new Set(producers.slice(pointers[v], pointers[v + 1]))];
  }
  return tasks.after[row] >= 0 ? [tasks.vertex[tasks.after[row]]] : [];
}

export function wait(trace, row) {
  const { tasks } = trace;
  const idle = tasks.begin[row] - tasks.ready[row];
  const reason = trace.reasons[tasks.reason[row]];
  const before = tasks.before[row];
  if (reason === "start") return idle > 0 ? `${seconds(idle)} for the host` : "nothing";
  const what = title(trace, before);
  const host = tasks.begin[row] - tasks.end[before];
  if (reason === "input") return `its input ${what}${host > 0 ? `, then ${seconds(host)} for the host` : ""}`;
  return `${seconds(Math.max(idle, 0))} for the ${reason}, busy with ${what}`;
}

export function facts(data, trace, row) {
  const { tasks, table, devices, links } = trace;
  const v = tasks.vertex[row];
  const transfer = isTransfer(trace, row);
  const lines = [];
  if (tasks.count?.[row] > 1) {
    lines.push(["merged", `${tasks.count[row]} tasks, to keep the page small`], ["where", transfer ? links[tasks.link[row]].name : devices[tasks.device[row]].name],
      ["from – to", `${seconds(tasks.begin[row])} – ${seconds(tasks.end[row])}`]);
    return lines;
  }
  if (transfer) {
    lines.push(["transfer", `${amount(tasks.bytes[row], "B")} over ${links[tasks.link[row]].name}`]);
  } else {
    lines.push(["kind", table.kinds[table.kind[v]]]);
    if (table.meta && table.metas[table.meta[v]]) lines.push(["meta-op", table.metas[table.meta[v]]]);
    lines.push(["device", devices[tasks.device[row]].name]);
  }
  lines.push(["takes", seconds(tasks.end[row] - tasks.begin[row])]);
  lines.push(["from – to", `${seconds(tasks.begin[row])} – ${seconds(tasks.end[row])}`]);
  const inputs = inputsOf(data, trace, row).map((input) => table.name[input]);
  const more = inputs.length > MAX_INPUTS ? ` and ${inputs.length - MAX_INPUTS} more` : "";
  const last = data.graph || transfer ? "" : " (the last to arrive)";
  if (inputs.length) lines.push(["inputs", inputs.slice(0, MAX_INPUTS).join(", ") + more + last]);
  lines.push(["waited for", wait(trace, row)]);
  if (trace.onChain[row]) lines.push(["critical", "on the critical chain"]);
  return lines;
}

export const card = (heading, lines) => h("div", { class: "card" }, h("strong", {}, heading),
  h("dl", {}, lines.map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]).flat()));
