// What if: move vertices to other devices, change the machine, and see the makespan again.

import { button, h, percent, seconds } from "./dom.js";
import { makeDraggable, takes } from "./drag.js";
import { update } from "./model.js";
import { swatch } from "./paint.js";
import { ask } from "./server.js";

const GIGA = 1e9, MAX_LINKS = 200;

export function whatIf(data, bus, parts) {
  return data.view?.whatIf ? new WhatIf(data, bus, parts) : null;
}

class WhatIf {
  // parts: timelines, graph, and those with a `refresh` of their own.
  constructor(data, bus, parts) {
    Object.assign(this, { data, bus, parts, state: data.view.whatIf, busy: Promise.resolve() });
    this.trace = data.traces[data.traces.length - 1];
    this.status = h("p", { class: "status", role: "status" });
    this.error = h("p", { class: "error", role: "alert" });
    this.undo = button("↶ Undo", "Undo", () => this.send({ do: "undo" }));
    this.redo = button("↷ Redo", "Redo", () => this.send({ do: "redo" }));
    this.reset = button("Start over", "Start over", () => this.send({ do: "reset" }));
    this.save = button("Save", "Save as an assignment", () => this.write());
    this.fields = { speed: [], bandwidth: [] };
    this.section = h("section", { id: "whatif", "aria-labelledby": "whatif-title" }, h("h2", { id: "whatif-title" }, "What if"),
      h("p", { class: "hint" }, "Select vertices: click a task or a vertex, Shift-click for more, Shift-drag a rectangle. Then drag them to a device, or choose it in the bar below (key M). Ctrl+Z undoes."),
      h("div", { class: "toolbar", role: "group", "aria-label": "What-if controls" }, this.undo, this.redo, this.reset, this.save),
      this.status, this.error, this.machine());
    this.bar = h("div", { class: "move-bar", role: "toolbar", "aria-label": "Move the selection", hidden: true });
    this.attach();
  }

  attach() {
    const { bus } = this;
    bus.pick = (vertices, adds) => this.pick(vertices, adds);
    bus.focusMove = () => { const first = this.bar.querySelector("button"); if (this.bar.hidden || !first) return false; first.focus(); return true; };
    bus.takes = (event, view) => takes(event, view, this.actions);
    let dragged = false;
    bus.dragged = () => dragged;
    this.actions = {
      selection: bus.selection, pick: (vertices, adds) => this.pick(vertices, adds),
      deviceAt: (x, y) => this.deviceAt(x, y), aim: (device) => this.aim(device), drop: (device) => this.move(device),
      describe: (device) => `${this.count()}${device === null ? "" : ` → ${this.trace.devices[device].name}`}`,
      wasDragged: () => { dragged = true; setTimeout(() => { dragged = false; }, 0); }, // the click that follows
    };
    document.addEventListener("keydown", (event) => this.key(event));
  }

  start() {
    for (const chart of this.parts.timelines.charts()) this.draggable(chart);
    if (this.parts.graph) makeDraggable(this.parts.graph.view, this.actions);
    this.parts.timelines.onArrange((chart) => this.draggable(chart));
    this.said();
  }

  draggable(chart) { if (chart.traces.every((trace) => trace.devices.length === this.trace.devices.length)) makeDraggable(chart, this.actions); }

  // ---- the selection

  pick(vertices, adds) {
    const chosen = this.bus.selection, all = vertices.length && vertices.every((v) => chosen.has(v));
    if (!adds) chosen.clear();
    for (const v of vertices) if (adds && all) chosen.delete(v); else if (this.trace.deviceOf[v] >= 0) chosen.add(v);
    this.bus.selectionChanged();
    this.showBar();
  }

  count() {
    const { size } = this.bus.selection;
    return size === 1 ? this.trace.table.name[[...this.bus.selection][0]] : `${size} vertices`;
  }

  showBar() {
    const chosen = [...this.bus.selection];
    this.bar.hidden = !chosen.length;
    if (!chosen.length) return;
    const { table, devices, deviceOf } = this.trace;
    const metas = table.meta ? [...new Set(chosen.map((v) => table.meta[v]))] : [];
    const here = new Set(chosen.map((v) => deviceOf[v]));
    const whole = metas.length === 1 && table.metas[metas[0]] ? table.meta.flatMap((m, v) => (m === metas[0] && deviceOf[v] >= 0 ? [v] : [])) : [];
    const more = whole.length > chosen.length ? button(`+ all of ${table.metas[metas[0]]}`, `Select all of meta-op ${table.metas[metas[0]]}`, () => this.pick(whole, false)) : "";
    this.targets = devices.map((device, d) => h("button", { type: "button", "data-device": d, "aria-pressed": String(here.size === 1 && here.has(d)),
      "aria-label": `Move to ${device.name}`, onclick: () => this.move(d) }, swatch(d), device.name));
    this.bar.replaceChildren(h("span", { class: "move-what" }, this.count()), more,
      h("span", { class: "muted" }, "move to"), h("span", { class: "targets" }, this.targets),
      button("Clear", "Clear the selection", () => this.pick([], false)), h("span", { class: "move-result" }, this.result()));
  }

  // The makespan, and how much more or less it is than at the start.
  result() {
    const change = this.state.start_s ? this.trace.makespan / this.state.start_s - 1 : 0;
    return `${seconds(this.trace.makespan)}${Math.abs(change) < 5e-5 ? "" : ` (${change < 0 ? "−" : "+"}${percent(Math.abs(change))})`}`;
  }

  deviceAt(x, y) {
    const target = document.elementFromPoint(x, y)?.closest?.("[data-device]");
    if (target && this.bar.contains(target)) return Number(target.dataset.device);
    for (const chart of this.parts.timelines.charts()) {
      const device = this.bar.contains(document.elementFromPoint(x, y)) ? null : chart.deviceAt(x, y);
      if (device !== null) return device;
    }
    return null;
  }

  aim(device) {
    this.parts.timelines.aim(device);
    (this.targets || []).forEach((target, d) => target.classList.toggle("aimed", d === device));
  }

  // ---- the machine

  machine() {
    const { speed, bandwidth } = this.state;
    const field = (kind, index, name, value, unit, scale) => {
      const input = h("input", { type: "number", min: 0, step: "any", value: shown(value / scale), "aria-label": `${kind === "speed" ? "Speed" : "Bandwidth"} of ${name}`,
        onchange: () => this.set(kind, index, Number(input.value) * scale) });
      this.fields[kind].push({ input, index, scale });
      return h("label", { class: "field" }, h("span", { class: "machine-name" }, name), input, h("span", {}, unit));
    };
    const links = bandwidth ? bandwidth.map((value, l) => [value, l]).filter(([value]) => value !== null).slice(0, MAX_LINKS) : [];
    return h("details", { class: "machine" }, h("summary", {}, "Change the machine"),
      h("h3", {}, "Speed of devices"), h("p", { class: "hint" }, "1: as fast as given; 2: twice as fast."),
      h("div", { class: "machine-fields" }, speed.map((value, d) => field("speed", d, this.trace.devices[d].name, value, "×", 1))),
      h("h3", {}, "Bandwidth of links"), links.length ? h("div", { class: "machine-fields" }, links.map(([value, l]) => field("bandwidth", l, this.trace.links[l].name, value, "GB/s", GIGA)))
        : h("p", { class: "hint" }, this.trace.links.length ? "The graph says how long its transfers take, whatever the link." : "The machine has no links."),
      links.length < (bandwidth || []).length && links.length === MAX_LINKS ? h("p", { class: "hint" }, `and ${bandwidth.length - links.length} more links`) : null);
  }

  set(kind, index, value) {
    if (!(value > 0)) { this.error.textContent = "A speed is a number above 0."; this.fill(); return; }
    this.send({ do: kind, index, value });
  }

  fill() {
    for (const [kind, fields] of Object.entries(this.fields))
      for (const { input, index, scale } of fields) input.value = shown(this.state[kind][index] / scale);
  }

  // ---- the server

  move(device) {
    const vertices = [...this.bus.selection];
    if (vertices.length) return this.send({ do: "move", vertices, device });
    return null;
  }

  send(edit) {
    const begun = performance.now();
    this.busy = this.busy.then(async () => {
      try {
        const answer = await ask(this.data.view, "edit", { ...edit, since: this.state.revision });
        this.take(answer);
        this.error.textContent = "";
        this.took = performance.now() - begun;
        this.said();
      } catch (error) {
        this.error.textContent = error.message;
        this.fill();
      }
    });
    return this.busy;
  }

  async write() {
    try {
      const { saved } = await ask(this.data.view, "save", {});
      this.state.unsaved = false;
      this.error.textContent = "";
      this.said(`saved to ${saved}`);
    } catch (error) { this.error.textContent = error.message; }
  }

  // Show what the server says: of a change that was made here, or on another page of the same server.
  // Says whether anything is new. Fields are left alone where nothing is: somebody may be typing.
  take(answer) {
    if (answer.trace) update(this.trace, answer.trace, this.data);
    const better = answer.bound !== undefined && answer.bound !== this.trace.bound;
    if (better) this.trace.bound = answer.bound;
    if (answer.machine) this.data.machine = answer.machine;
    Object.assign(this.state, answer.whatIf);
    if (answer.trace) this.fill();
    if (!answer.trace && !better) return false;
    for (const part of Object.values(this.parts)) part?.refresh?.(this.trace);
    this.showBar();
    return true;
  }

  said(more = "") {
    const { trace, state } = this;
    const change = state.start_s ? trace.makespan / state.start_s - 1 : 0;
    const than = Math.abs(change) < 5e-5 ? "the same as at the start" : `${percent(Math.abs(change))} ${change < 0 ? "less" : "more"} than at the start`;
    const words = [`makespan ${seconds(trace.makespan)}, ${than}`];
    if (trace.bound) words.push(`lower bound ${seconds(trace.bound)}, gap ${percent(trace.makespan / trace.bound - 1)}`);
    words.push(`${state.moved} ${state.moved === 1 ? "vertex" : "vertices"} moved`);
    if (state.changed) words.push("the machine is changed, which an assignment does not save");
    if (this.took) words.push(`answered in ${Math.round(this.took)} ms`);
    if (more) words.push(more);
    this.status.textContent = words.join("; ");
    this.undo.disabled = !state.undo;
    this.redo.disabled = !state.redo;
    this.reset.disabled = !state.moved && !state.changed;
    this.save.disabled = !state.save;
    this.save.title = state.save ? `Save as ${state.save}` : "no file to save to was given";
  }

  key(event) {
    if (!(event.ctrlKey || event.metaKey) || event.target.matches?.("input, select, textarea")) return;
    const letter = event.key.toLowerCase();
    if (letter !== "z" && letter !== "y") return;
    event.preventDefault();
    this.send({ do: letter === "y" || event.shiftKey ? "redo" : "undo" });
  }
}

const shown = (value) => String(Number(value.toPrecision(6)));
