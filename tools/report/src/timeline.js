// One timeline on a canvas: of one trace, or of two with the same assignment.

import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";
import { h, percent, seconds } from "./dom.js";
import { TOP, firstVisible, makeLanes, taskAt } from "./lanes.js";
import { identity, isTransfer, title } from "./model.js";
import { inkOn, paint, sharpen, theme } from "./paint.js";
import { card, facts, wait } from "./task.js";
import * as tooltip from "./tooltip.js";

const RIGHT = 14, LABEL = 38, MAX_ZOOM = 1e5, DIFFERENT = 0.1;
const HELP = "Arrow keys move between tasks, plus and minus zoom, 0 shows all, Escape leaves.";

export class Timeline {
  constructor(data, traces, shared) {
    Object.assign(this, { data, traces, shared, selected: null });
    this.pairs = traces.length > 1 ? pairUp(traces) : null;
    this.canvas = h("canvas", {
      tabindex: 0, role: "application", "aria-label": this.describe(), class: "timeline",
    });
    this.about = h("figcaption", {}, this.caption());
    this.element = h("figure", { class: "chart" }, this.about, this.canvas);
    this.zoom = zoom().scaleExtent([1, MAX_ZOOM]).filter((event) => this.accepts(event))
      .on("zoom", (event) => event.sourceEvent !== "sync" && shared.zoomed(event.transform, this));
    select(this.canvas).call(this.zoom);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => tooltip.hide());
    this.canvas.addEventListener("click", (event) => this.choose(this.hit(event), false, event.shiftKey || event.ctrlKey || event.metaKey));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  describe() {
    const names = this.traces.map((trace) => `${trace.name}, makespan ${seconds(trace.makespan)}`);
    return `Timeline of ${names.join(" and of ")}. ${HELP}`;
  }

  caption() {
    return this.traces.map((trace, i) => [
      h("strong", {}, this.pairs ? `${"AB"[i]}: ${trace.name}` : trace.name),
      ` ${seconds(trace.makespan)}`,
      trace.bound ? `, gap ${percent(trace.makespan / trace.bound - 1)}` : "",
      i + 1 < this.traces.length ? "   " : "",
    ]).flat();
  }

  // After a change of one of its traces.
  refresh(trace) {
    if (!this.traces.includes(trace)) return;
    const { selected } = this;
    if (selected?.track.trace === trace) { // rows have other numbers now
      const row = selected.vertex === undefined ? -1 : trace.execOf[selected.vertex];
      this.selected = row < 0 ? null : { ...selected, row };
    }
    this.pairs = this.traces.length > 1 ? pairUp(this.traces) : null;
    this.made = null;
    this.about.replaceChildren(...this.caption());
    this.canvas.setAttribute("aria-label", this.describe());
  }

  // The wheel scrolls the page unless the canvas was clicked or a key is held.
  accepts(event) {
    if (event.type !== "wheel") return !event.button && !this.shared.bus.takes(event, this);
    return event.ctrlKey || event.metaKey || document.activeElement === this.canvas;
  }

  layout() {
    if (this.made?.transfers !== this.shared.transfers) {
      this.made = { ...makeLanes(this.traces, this.shared.transfers), transfers: this.shared.transfers };
      this.lanes = this.made.lanes;
      this.height = this.made.height;
      this.tracks = this.lanes.flatMap((lane) => lane.tracks);
      this.spots = this.traces.map((trace) => this.places(trace));
      this.trackOf = this.traces.map((trace) => new Int32Array(trace.size).fill(-1)); // -1: not shown
      this.tracks.forEach((track, i) => { for (const row of track.rows) this.trackOf[track.which][row] = i; });
    }
    this.width = this.canvas.clientWidth || 800;
    const longest = Math.max(4, ...this.lanes.map((lane) => lane.label.length));
    this.left = Math.min(12 + 6.6 * longest, this.width * 0.22) + (this.pairs ? 14 : 0);
    this.base = scaleLinear([0, this.shared.end], [this.left, this.width - RIGHT]);
    const extent = [[this.left, 0], [this.width - RIGHT, this.height]];
    this.zoom.extent(extent).translateExtent(extent);
  }

  sync(transform) { this.canvas.__zoom = transform; this.draw(); }

  draw() {
    this.layout();
    const colours = theme();
    const g = (this.g = sharpen(this.canvas, this.width, this.height));
    const transform = this.canvas.__zoom || zoomIdentity;
    this.x = transform.rescaleX(this.base);
    g.font = "12px system-ui, sans-serif";
    this.drawAxis(g, colours);
    g.save();
    g.beginPath();
    g.rect(this.left, 0, this.width - this.left - RIGHT, this.height);
    g.clip();
    for (const lane of this.lanes) this.drawLane(g, lane, colours);
    this.drawMarks(g, colours);
    if (this.shared.chain) this.traces.forEach((trace, i) => this.drawChain(g, trace, this.spots[i], colours));
    this.drawSelected(g, colours);
    g.restore();
    this.drawLabels(g, colours);
  }

  drawAxis(g, colours) {
    g.fillStyle = colours.muted;
    g.strokeStyle = colours.line;
    g.lineWidth = 1;
    g.textBaseline = "alphabetic";
    g.textAlign = "center";
    g.beginPath();
    for (const tick of this.x.ticks(Math.max(2, Math.floor((this.width - this.left) / 110)))) {
      const x = this.x(tick);
      g.fillText(seconds(tick), Math.min(Math.max(x, this.left + 14), this.width - RIGHT - 18), 13);
      g.moveTo(x, 18);
      g.lineTo(x, this.height);
    }
    g.stroke();
  }

  colourOf(trace, row) {
    const { tasks, table } = trace;
    if (this.shared.colour === "device") {
      const device = isTransfer(trace, row) ? tasks.source[row] : tasks.device[row];
      return device < trace.devices.length ? device : -1;
    }
    if (isTransfer(trace, row)) return -1;
    const key = this.shared.colour === "meta" && table.meta ? "meta" : "kind";
    return this.shared.rank(trace, key)[table[key][tasks.vertex[row]]];
  }

  drawLane(g, lane, colours) {
    for (const track of lane.tracks) {
      g.fillStyle = colours.lane;
      g.fillRect(this.left, track.y, this.width - this.left, track.height);
      this.drawTrack(g, track, colours);
    }
  }

  drawTrack(g, track, colours) {
    const { trace, rows, y, height } = track;
    const { begin, end, vertex } = trace.tasks;
    const [from, to] = this.x.domain();
    const dim = this.shared.chain, zero = this.x(0), perSecond = this.x(1) - zero;
    let painted = -Infinity;
    for (let i = firstVisible(track, from); i < rows.length && begin[rows[i]] <= to; i++) {
      const row = rows[i];
      const x0 = zero + perSecond * begin[row], x1 = zero + perSecond * end[row];
      if (x1 - x0 < 0.4 && x1 - painted < 0.5) continue; // hidden by the one before
      const number = this.colourOf(trace, row);
      const width = Math.max(x1 - x0 - (x1 - x0 > 3 ? 0.7 : 0), 0.6);
      g.globalAlpha = dim && !trace.onChain[row] ? 0.5 : 1;
      g.fillStyle = paint(number);
      g.fillRect(x0, y, width, height);
      painted = x0 + width;
      if (width > LABEL && height > 12) {
        const dimmed = g.globalAlpha < 1;
        g.globalAlpha = 1;
        this.drawName(g, trace.tasks.count?.[row] > 1 ? title(trace, row) : trace.table.name[vertex[row]], x0, y, width, height, dimmed ? colours.text : inkOn(number));
      }
      if (this.pairs && track.which === 1) this.drawDifference(g, trace, row, x0, y, width, height, colours);
    }
    g.globalAlpha = 1;
  }

  drawName(g, name, x0, y, width, height, colour) {
    const left = Math.max(x0, this.left) + 3;
    const room = Math.floor((x0 + width - left - 3) / 6.3);
    if (room < 3) return;
    g.fillStyle = colour;
    g.textAlign = "left";
    g.textBaseline = "middle";
    g.font = "11px system-ui, sans-serif";
    g.fillText(name.length > room ? `${name.slice(0, room - 1)}…` : name, left, y + height / 2 + 0.5, x0 + width - left);
  }

  // A bar below tasks that took at least a tenth longer or less in the second trace.
  drawDifference(g, trace, row, x0, y, width, height, colours) {
    const change = this.pairs.change(row);
    if (change === null || Math.abs(change) < DIFFERENT) return;
    const size = Math.min(height / 2, 2 + Math.abs(change) * 4);
    g.fillStyle = change > 0 ? colours.slower : colours.faster;
    g.fillRect(x0, y + height - size, width, size);
    g.fillStyle = colours.page;
    g.fillRect(x0, y + height - size - 1, width, 1);
  }

  drawMarks(g, colours) {
    const mark = (time, text, dash) => {
      const x = this.x(time);
      g.strokeStyle = g.fillStyle = colours.text;
      g.setLineDash(dash);
      g.beginPath();
      g.moveTo(x, 18);
      g.lineTo(x, this.height);
      g.stroke();
      g.setLineDash([]);
      g.textAlign = "right";
      g.textBaseline = "alphabetic";
      g.font = "11px system-ui, sans-serif";
      g.fillText(text, x - 3, 26);
    };
    for (const trace of this.traces) if (trace.bound) mark(trace.bound, "lower bound", [4, 3]);
    this.traces.forEach((trace, i) => mark(trace.makespan, this.pairs ? `end ${"AB"[i]}` : "end", []));
  }

  drawChain(g, trace, place, colours) {
    const { begin, end } = trace.tasks;
    g.strokeStyle = colours.chain;
    g.lineWidth = 1.5;
    g.beginPath();
    let from = null;
    for (const row of trace.chain) {
      const track = place.get(row);
      if (!track) { from = null; continue; }
      const x0 = this.x(begin[row]), x1 = this.x(end[row]);
      if (x1 - x0 > 3) g.rect(x0 + 0.75, track.y + 0.75, x1 - x0 - 1.5, track.height - 1.5);
      if (from) { g.moveTo(from[0], from[1]); g.lineTo(x0, track.y + track.height / 2); }
      from = [x1, track.y + track.height / 2];
    }
    g.stroke();
    g.lineWidth = 1;
  }

  places(trace) {
    const found = new Map();
    for (const track of this.tracks)
      if (track.trace === trace) for (const row of track.rows) if (trace.onChain[row]) found.set(row, track);
    return found;
  }

  drawSelected(g, colours) {
    this.drawPicked(g, colours);
    if (!this.selected) return;
    const { track, row } = this.selected;
    const here = this.tracks[this.trackOf[this.traces.indexOf(track.trace)]?.[row]];
    if (!here) return;
    const x0 = this.x(here.trace.tasks.begin[row]), x1 = this.x(here.trace.tasks.end[row]);
    g.strokeStyle = colours.page;
    g.lineWidth = 5;
    g.strokeRect(x0 - 1, here.y - 1, Math.max(x1 - x0, 2) + 2, here.height + 2);
    g.strokeStyle = colours.text;
    g.lineWidth = 2.5;
    g.strokeRect(x0 - 1, here.y - 1, Math.max(x1 - x0, 2) + 2, here.height + 2);
    g.lineWidth = 1;
  }

  // The selection of a what-if, and the lane on which it would be dropped.
  drawPicked(g, colours) {
    const { bus, target } = this.shared;
    const lane = target === null ? null : this.lanes.find((one) => one.kind === "device" && one.index === target);
    g.strokeStyle = colours.accent;
    g.lineWidth = 3;
    if (lane) g.strokeRect(this.left + 1, lane.y - 1, this.width - this.left - RIGHT - 2, lane.height + 2);
    if (!bus.selection.size) return;
    g.strokeStyle = colours.text;
    g.lineWidth = 2;
    this.traces.forEach((trace, which) => {
      for (const v of bus.selection) {
        const row = trace.execOf[v], track = row < 0 ? undefined : this.tracks[this.trackOf[which][row]];
        if (!track) continue;
        const x0 = this.x(trace.tasks.begin[row]);
        g.strokeRect(x0, track.y, Math.max(this.x(trace.tasks.end[row]) - x0, 2), track.height);
      }
    });
    g.lineWidth = 1;
  }

  // What a drag would take, what lies inside a rectangle, and the device whose lane is at a point.
  verticesAt(event) {
    const found = this.hit(event);
    return found && this.vertexOf(found) !== undefined ? [this.vertexOf(found)] : [];
  }

  verticesWithin(box) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const [from, to] = [this.x.invert(box.left - left), this.x.invert(box.right - left)];
    return this.tracks.filter((track) => track.y + track.height > box.top - top && track.y < box.bottom - top)
      .flatMap(({ trace, rows }) => rows.filter((row) => trace.tasks.link[row] < 0 && trace.tasks.end[row] >= from && trace.tasks.begin[row] <= to && !(trace.tasks.count?.[row] > 1))
        .map((row) => trace.tasks.vertex[row]));
  }

  deviceAt(x, y) {
    const box = this.canvas.getBoundingClientRect();
    if (x < box.left || x > box.right || y < box.top || y > box.bottom) return null;
    const lane = this.lanes.find((one) => one.kind === "device" && y - box.top >= one.y - 2 && y - box.top <= one.y + one.height + 2);
    return lane ? lane.index : null;
  }

  vertexOf({ track, row }) {
    const { tasks } = track.trace;
    return tasks.link[row] < 0 && !(tasks.count?.[row] > 1) ? tasks.vertex[row] : undefined;
  }

  drawLabels(g, colours) {
    g.textBaseline = "middle";
    for (const lane of this.lanes) {
      g.textAlign = "right";
      g.fillStyle = lane.kind === "device" ? colours.text : colours.muted;
      g.font = lane.kind === "device" ? "600 12px system-ui, sans-serif" : "10px system-ui, sans-serif";
      const inset = this.pairs ? 20 : 8;
      g.fillText(lane.label, this.left - inset, lane.y + lane.height / 2, this.left - inset - 2);
      if (this.pairs && lane.kind === "device") {
        g.font = "10px system-ui, sans-serif";
        for (const track of lane.tracks) g.fillText("AB"[track.which], this.left - 6, track.y + track.height / 2);
      }
    }
  }

  hit(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    if (!this.x || x < this.left) return null;
    const track = this.tracks.find((one) => y >= one.y - 1 && y <= one.y + one.height);
    if (!track) return null;
    const row = taskAt(track, this.x.invert(x), this.x.invert(x + 3) - this.x.invert(x));
    return row < 0 ? null : { track, row };
  }

  hover(event) {
    const found = event.buttons ? null : this.hit(event);
    if (!found) return tooltip.hide();
    tooltip.show(this.card(found), event.clientX, event.clientY);
  }

  card({ track, row }) {
    const lines = facts(this.data, track.trace, row);
    if (this.pairs) lines.push(...this.pairs.facts(track.which, row));
    return card(title(track.trace, row), lines);
  }

  choose(found, reveal = false, adds = false) {
    if (this.shared.bus.dragged()) return;
    this.selected = found && { ...found, vertex: this.vertexOf(found) };
    const vertex = found && this.vertexOf(found);
    this.shared.bus.pick(vertex === null || vertex === undefined ? [] : [vertex], adds);
    if (found && reveal) this.reveal(found);
    this.shared.chosen(this, found);
  }

  reveal({ track, row }) {
    const { begin, end } = track.trace.tasks;
    const [from, to] = this.x.domain();
    if (begin[row] >= from && end[row] <= to) return;
    const middle = this.base((begin[row] + end[row]) / 2);
    select(this.canvas).call(this.zoom.translateTo, middle, 0);
  }

  say() {
    if (!this.selected) return "";
    const { track, row } = this.selected;
    const { tasks } = track.trace;
    return `${title(track.trace, row)}, ${seconds(tasks.end[row] - tasks.begin[row])}, waited for ${wait(track.trace, row)}`;
  }

  key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (step) this.move(...step);
    else if (event.key === "+" || event.key === "=") select(this.canvas).call(this.zoom.scaleBy, 1.5);
    else if (event.key === "-") select(this.canvas).call(this.zoom.scaleBy, 1 / 1.5);
    else if (event.key === "0") select(this.canvas).call(this.zoom.transform, zoomIdentity);
    else if (event.key === "m" && this.shared.bus.focusMove()) return;
    else if (event.key === "Escape") { this.choose(null); tooltip.hide(); }
    else return;
    event.preventDefault();
  }

  move(across, down) {
    const tracks = this.tracks.filter((track) => track.rows.length);
    if (!tracks.length) return;
    if (!this.selected) return this.choose({ track: tracks[0], row: tracks[0].rows[0] }, true);
    const { row } = this.selected;
    const here = this.tracks[this.trackOf[this.traces.indexOf(this.selected.track.trace)][row]];
    const index = tracks.indexOf(here);
    if (index < 0) return;
    if (across) {
      const { rows } = tracks[index];
      const next = rows[rows.indexOf(row) + across];
      if (next !== undefined) this.choose({ track: tracks[index], row: next }, true);
    } else if (tracks[index + down]) {
      const track = tracks[index + down];
      const { begin, end } = this.selected.track.trace.tasks;
      const next = taskAt(track, (begin[row] + end[row]) / 2, Infinity);
      this.choose({ track, row: next }, true);
    }
  }
}

// Tasks of two traces by what they are, and how much longer they took in the second.
export function pairUp([a, b]) {
  const rowOf = [a, b].map((trace) => {
    const found = new Map();
    for (let row = 0; row < trace.size; row++) found.set(identity(trace, row), row);
    return found;
  });
  const takes = (trace, row) => trace.tasks.end[row] - trace.tasks.begin[row];
  const other = (which, row) => rowOf[1 - which].get(identity([a, b][which], row));
  return {
    change(row) {
      const same = other(1, row);
      return same === undefined || !takes(a, same) ? null : takes(b, row) / takes(a, same) - 1;
    },
    facts(which, row) {
      const same = other(which, row);
      if (same === undefined) return [];
      const trace = [b, a][which];
      const ratio = takes([a, b][which], row) / takes(trace, same) || 0;
      return [[`in ${trace.name}`, `${seconds(takes(trace, same))} from ${seconds(trace.tasks.begin[same])} (×${ratio.toPrecision(3)})`]];
    },
  };
}
