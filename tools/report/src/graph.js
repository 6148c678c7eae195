// The graph on a canvas: vertices coloured by device, search, focus, and a replay of the order.

import { select as pick } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";
import { button, checkbox, h, select } from "./dom.js";
import { GraphDrawing, WIDE, clamp } from "./drawing.js";
import { makeNet } from "./net.js";
import { swatch } from "./paint.js";
import { card, facts } from "./task.js";
import * as tooltip from "./tooltip.js";

const MAX_FOUND = 20, PLAY_MS = 8000;
const HELP = "Left and right arrows follow edges, up and down go to the next vertex of the layer, Enter opens and closes a group, plus and minus zoom, 0 shows all, Escape clears.";

export function graphSection(data, bus) {
  if (!data.graph) return null;
  const view = new GraphView(data, bus);
  return { section: view.section, redraw: () => view.draw(), start: () => view.start(), refresh: (trace) => view.refresh(trace), view, probe: () => view };
}

class GraphView extends GraphDrawing {
  constructor(data, bus) {
    super();
    Object.assign(this, { data, bus, selected: -1, trace: data.traces[data.view?.whatIf ? data.traces.length - 1 : 0], inputs: false, only: null });
    this.net = makeNet(data);
    this.canvas = h("canvas", { class: "graph", tabindex: 0, role: "application", "aria-label": `Graph ${data.graph.name}. ${HELP}` });
    this.zoom = zoom().scaleExtent([0.01, 60]).on("zoom", (event) => { this.at = event.transform; this.draw(); })
      .filter((e) => (e.type === "wheel" ? e.ctrlKey || e.metaKey || document.activeElement === this.canvas : !e.button && !this.bus.takes(e, this)));
    pick(this.canvas).call(this.zoom).on("dblclick.zoom", null);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => tooltip.hide());
    this.canvas.addEventListener("click", (event) => this.choose(this.hit(event), event.shiftKey || event.ctrlKey || event.metaKey));
    this.canvas.addEventListener("dblclick", (event) => this.toggle(this.groupAt(event)));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.build();
    bus.onVertex((trace, vertex, from) => {
      if (from === "graph") return;
      this.selected = vertex < 0 ? -1 : this.net.nodeOf(vertex);
      this.refocus();
    });
    this.picked = new Set(); // nodes with vertices of the selection
    bus.onSelection(() => { this.repick(); this.draw(); });
  }

  build() {
    const { data } = this;
    this.live = h("p", { class: "sr-only", "aria-live": "polite" });
    this.panel = h("div", { class: "panel", hidden: true });
    this.groupHint = h("p", { class: "hint" });
    this.found = h("ul", { class: "found", "aria-label": "Vertices found" });
    this.legend = h("ul", { class: "legend", "aria-label": "Devices" });
    this.search = h("input", { type: "search", id: "search", placeholder: "name of a vertex", autocomplete: "off", spellcheck: "false",
      oninput: () => this.find(), onkeydown: (event) => event.key === "Enter" && this.matches[0] !== undefined && this.go(this.matches[0]) });
    this.matches = [];
    this.slider = h("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "Vertices shown, in order", oninput: () => this.step() });
    this.stepText = h("output", {});
    this.play = button("▶", "Play the order", () => this.run());
    this.orders = select("Order", [], () => this.reorder());
    this.traceSelect = select("Devices of", data.traces.map((t, i) => [i, t.name]), (i) => { this.trace = data.traces[i]; this.retrace(); });
    this.traceSelect.control.value = data.traces.indexOf(this.trace);
    this.section = h("section", { id: "graph", "aria-labelledby": "graph-title" },
      h("h2", { id: "graph-title" }, "Graph"),
      h("div", { class: "toolbar", role: "group", "aria-label": "Graph controls" },
        data.traces.length > 1 ? this.traceSelect.element : null,
        h("label", { class: "field" }, h("span", {}, "Search"), this.search),
        checkbox("inputs", this.inputs, (on) => { this.inputs = on; this.fit(); }),
        h("span", { class: "group" },
          button("+", "Zoom in", () => this.scale(1.6)), button("−", "Zoom out", () => this.scale(1 / 1.6)), button("All", "Show all", () => this.fit()))),
      this.found, this.legend,
      data.graph.grouped ? this.groupHint : h("p", { class: "hint" }, "Click a vertex to see all that leads to it and all that follows. Edges in colour cross devices."),
      h("figure", { class: "chart" }, this.canvas),
      h("div", { class: "toolbar replay", role: "group", "aria-label": "Replay" }, this.play, this.slider, this.stepText, this.orders.element),
      this.panel, this.live);
  }

  start() { this.regroup(); this.retrace(); this.fit(); }

  // After a change of one of the traces.
  refresh(trace) {
    if (trace !== this.trace) return;
    this.shares = this.net.shares(trace);
    this.reorder();
    if (this.selected >= 0) this.refocus();
  }

  regroup() {
    const { net } = this, { graph } = this.data;
    const open = net.open.size ? `, ${net.open.size} of them open` : "";
    this.groupHint.replaceChildren(`${net.vertices} vertices, drawn as ${graph.nodeNames.length} groups by meta-op or kind${open}; a bar shows the share of each device. Double-click a group, or press Enter, to open or close it. `,
      net.open.size ? button("Close all groups", "Close all groups", () => this.toggle(-1)) : "");
  }

  // Open a closed group, close an open one; -1 closes all.
  toggle(group) {
    if (!this.data.graph.grouped || group === null) return;
    const open = new Set(group < 0 ? [] : this.net.open);
    if (!open.delete(group) && group >= 0) open.add(group);
    const kept = this.selected >= 0 ? this.net.members(this.selected)[0] : -1;
    this.net = makeNet(this.data, open);
    this.shares = this.net.shares(this.trace);
    this.repick();
    this.selected = kept < 0 ? -1 : this.net.nodeOf(kept);
    this.matches = [];
    this.regroup();
    this.step();
    this.refocus();
    if (open.has(group)) this.show(group); else this.fit();
    this.live.textContent = group < 0 ? "all groups closed" : `${this.net.groupName(group)} ${open.has(group) ? "open" : "closed"}`;
  }

  // Zoom to an open group.
  show(group) {
    const frame = this.net.frames.find((one) => one.group === group);
    if (!frame) return this.fit();
    this.measure();
    const [x, y, wide, tall] = this.box(frame);
    const k = clamp(0.05, Math.min(this.width / (wide + 80), this.height / (tall * 1.15 + 60)), 2.5);
    const there = zoomIdentity.translate(this.width / 2 - (x + wide / 2) * k, this.height / 2 - (y + tall / 2) * k).scale(k);
    pick(this.canvas).call(this.zoom.transform, there);
  }

  // The group of the node at the pointer, or whose frame is there; null where there is none.
  groupAt(event) {
    const node = this.hit(event);
    if (node >= 0) return this.data.graph.grouped ? this.net.group(node) : null;
    const [px, py] = this.point(event);
    const frame = this.net.frames.find((one) => { const [x, y, wide, tall] = this.box(one); return px >= x && px <= x + wide && py >= y && py <= y + tall; });
    return frame ? frame.group : null;
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.at.invert([event.clientX - box.left, event.clientY - box.top]);
  }

  retrace() {
    const options = [["begin", "in which they began"]];
    if (this.trace.order) options.unshift(["chosen", "in which they were chosen"]);
    this.orders.control.replaceChildren(...options.map(([value, text]) => h("option", { value }, text)));
    this.legend.replaceChildren(...this.trace.devices.map((device, d) => h("li", {}, swatch(d), device.name)));
    this.shares = this.net.shares(this.trace);
    this.reorder();
  }

  reorder() {
    const rows = this.trace.execOf;
    this.order = this.orders.control.value === "chosen" ? this.trace.order
      : [...rows.keys()].filter((v) => rows[v] >= 0).sort((a, b) => rows[a] - rows[b]);
    this.slider.max = this.order.length;
    this.slider.value = this.order.length;
    this.step();
  }

  step() {
    const count = Number(this.slider.value);
    const all = count === this.order.length;
    this.reached = null;
    let text = `all ${count}`;
    if (!all) {
      this.reached = new Float32Array(this.net.size);
      for (let i = 0; i < count; i++) this.reached[this.net.nodeOf(this.order[i])] += 1;
      const last = count ? this.trace.table.name[this.order[count - 1]] : "none";
      text = `${count} of ${this.order.length}: ${last}`;
    }
    this.newest = all || !count ? -1 : this.net.nodeOf(this.order[count - 1]);
    this.stepText.textContent = text;
    this.slider.setAttribute("aria-valuetext", text);
    this.draw();
  }

  run() {
    if (this.timer) { cancelAnimationFrame(this.timer); this.timer = null; this.play.textContent = "▶"; return; }
    const size = this.order.length;
    const begun = Number(this.slider.value) >= size ? 0 : Number(this.slider.value);
    let first = null;
    this.play.textContent = "⏸";
    const frame = (now) => {
      first = first ?? now;
      const count = Math.min(size, begun + Math.floor(((now - first) / PLAY_MS) * size));
      this.slider.value = count;
      this.step();
      if (count < size) this.timer = requestAnimationFrame(frame);
      else { this.timer = null; this.play.textContent = "▶"; }
    };
    this.timer = requestAnimationFrame(frame);
  }

  scale(factor) { pick(this.canvas).call(this.zoom.scaleBy, factor); }

  fit() {
    const { wide, tall } = this.measure();
    const k = Math.min(this.width / wide, this.height / tall, 3);
    const middle = zoomIdentity.translate((this.width - wide * k) / 2, (this.height - tall * k) / 2).scale(k);
    pick(this.canvas).call(this.zoom.transform, middle);
  }

  repick() { this.picked = new Set([...this.bus.selection].map((v) => this.net.nodeOf(v))); }

  hit(event) {
    const [px, py] = this.point(event);
    const reach = Math.max(0, 6 / this.at.k - this.high / 2);
    let best = -1, distance = Infinity;
    for (let node = 0; node < this.net.size; node++) {
      if (!this.shown(node)) continue;
      const [x, y] = this.place(node);
      const dx = Math.max(0, Math.abs(px - x) - WIDE / 2), dy = Math.max(0, Math.abs(py - y) - this.high / 2);
      if (dx + dy < distance) { best = node; distance = dx + dy; }
    }
    return distance <= reach ? best : -1;
  }

  // What a drag would take, and what lies inside a rectangle: vertices that have a device.
  verticesAt(event) {
    const node = this.hit(event);
    return node < 0 ? [] : this.assigned(this.net.members(node));
  }

  verticesWithin(box) {
    const corner = (x, y) => this.point({ clientX: x, clientY: y });
    const [x0, y0] = corner(box.left, box.top), [x1, y1] = corner(box.right, box.bottom);
    const found = [];
    for (let node = 0; node < this.net.size; node++) {
      const [x, y] = this.place(node);
      if (this.shown(node) && x > x0 - WIDE / 2 && x < x1 + WIDE / 2 && y > y0 - this.high / 2 && y < y1 + this.high / 2) found.push(...this.assigned(this.net.members(node)));
    }
    return found;
  }

  assigned(vertices) { return vertices.filter((v) => !this.data.graph.isInput[v]); }

  hover(event) {
    const node = event.buttons ? -1 : this.hit(event);
    if (node < 0) return tooltip.hide();
    tooltip.show(this.card(node), event.clientX, event.clientY);
  }

  card(node) {
    const members = this.net.members(node), name = this.net.name(node);
    if (this.net.isGroup(node)) {
      const lines = [["vertices", members.length]];
      for (const [device, share] of this.shares[node]) lines.push([this.trace.devices[device].name, Math.round(share * this.net.placed[node])]);
      return card(name, lines);
    }
    const row = this.trace.execOf[members[0]];
    if (row >= 0) return card(name, facts(this.data, this.trace, row));
    const device = this.trace.deviceOf[members[0]];
    return card(name, device < 0 ? [["kind", "input: on every device from the start"]]
      : [["device", this.trace.devices[device].name], ["times", "drawn together with its neighbours, to keep the page small"]]);
  }

  choose(node, adds = false) {
    if (this.bus.dragged()) return;
    this.selected = node;
    this.refocus();
    const vertex = node >= 0 && !this.net.isGroup(node) ? this.net.members(node)[0] : -1;
    this.bus.vertex(this.trace, vertex, "graph");
    this.bus.pick(node < 0 ? [] : this.assigned(this.net.members(node)), adds);
  }

  refocus() {
    const node = this.selected;
    this.only = node < 0 ? null : this.net.related(node);
    this.panel.hidden = node < 0;
    this.live.textContent = node < 0 ? "" : `${this.net.name(node)}, ${this.only.size - 1} vertices before and after it`;
    if (node >= 0) this.panel.replaceChildren(this.card(node), this.neighbours(node), this.groupButton(node));
    this.draw();
  }

  groupButton(node) {
    const group = this.data.graph.grouped ? this.net.group(node) : -1;
    if (group < 0) return "";
    const text = this.net.open.has(group) ? `Close group ${this.net.groupName(group)}` : "Open this group";
    return h("p", {}, button(text, text, () => { this.toggle(group); this.canvas.focus(); }));
  }

  neighbours(node) {
    const list = (label, nodes) => h("p", { class: "neighbours" }, h("span", {}, label),
      nodes.length ? nodes.slice(0, MAX_FOUND).map((one) => h("button", { type: "button", onclick: () => this.go(one) }, this.net.name(one))) : "none",
      nodes.length > MAX_FOUND ? ` and ${nodes.length - MAX_FOUND} more` : "");
    return h("div", {}, list("reads", this.net.before[node]), list("read by", this.net.after[node]));
  }

  find() {
    const wanted = this.search.value.trim().toLowerCase();
    this.matches = [];
    for (let node = 0; wanted && node < this.net.size && this.matches.length < MAX_FOUND; node++)
      if (this.net.name(node).toLowerCase().includes(wanted)) this.matches.push(node);
    const inside = this.data.graph.grouped && wanted ? this.inGroups(wanted, MAX_FOUND - this.matches.length) : [];
    this.found.replaceChildren(...this.matches.map((node) =>
      h("li", {}, h("button", { type: "button", onclick: () => this.go(node) }, this.net.name(node)))),
    ...inside.map((v) => h("li", {}, h("button", { type: "button", onclick: () => this.goInto(v) }, `${this.trace.table.name[v]} in ${this.net.groupName(this.data.graph.nodeOf[v])}`))));
    if (inside.length && !this.matches.length) this.matches = [() => this.goInto(inside[0])];
    if (wanted && !this.matches.length) this.found.replaceChildren(h("li", {}, "no vertex has such a name"));
  }

  // Vertices of closed groups whose names have this text.
  inGroups(wanted, most) {
    const found = [], { name } = this.trace.table;
    for (let v = 0; v < name.length && found.length < most; v++)
      if (!this.net.open.has(this.data.graph.nodeOf[v]) && name[v].toLowerCase().includes(wanted)) found.push(v);
    return found;
  }

  goInto(vertex) {
    if (!this.net.open.has(this.data.graph.nodeOf[vertex])) this.toggle(this.data.graph.nodeOf[vertex]);
    this.go(this.net.nodeOf(vertex));
  }

  go(node) {
    if (typeof node === "function") return node();
    if (!this.shown(node)) {
      this.inputs = this.section.querySelector("input[type=checkbox]").checked = true;
      this.measure();
    }
    this.choose(node);
    const [x, y] = this.place(node), k = Math.max(this.at.k, 1.8);
    const there = zoomIdentity.translate(this.width / 2 - x * k, this.height / 2 - y * k).scale(k);
    pick(this.canvas).call(this.zoom.transform, there);
  }

  key(event) {
    const next = { ArrowLeft: () => this.net.before[this.selected][0], ArrowRight: () => this.net.after[this.selected][0],
      ArrowUp: () => this.net.beside(this.selected, -1), ArrowDown: () => this.net.beside(this.selected, 1) }[event.key];
    if (next) {
      const node = this.selected < 0 ? this.net.first : next();
      if (node !== undefined && node >= 0) this.go(node);
    } else if (event.key === "Enter" && this.selected >= 0 && this.data.graph.grouped) this.toggle(this.net.group(this.selected));
    else if (event.key === "m" && this.bus.focusMove()) return;
    else if (event.key === "+" || event.key === "=") this.scale(1.5);
    else if (event.key === "-") this.scale(1 / 1.5);
    else if (event.key === "0") this.fit();
    else if (event.key === "Escape") { this.choose(-1); tooltip.hide(); }
    else return;
    event.preventDefault();
  }
}
