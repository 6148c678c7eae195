// How the graph is drawn: where nodes go, edges, frames of open groups, names.

import { ink, paint, sharpen, theme } from "./paint.js";

export const WIDE = 40;
const MIN_STEP_X = 56, MAX_STEP_X = 420, MIN_STEP_Y = 14, MAX_STEP_Y = 100, MANY_EDGES = 600, BATCH = 64;

export const clamp = (low, value, high) => Math.min(high, Math.max(low, value));

// Draws what its heir sets: canvas, data, net, trace, shares, at, and what is selected.
export class GraphDrawing {
  measure() {
    this.width = this.canvas.clientWidth || 800;
    this.height = clamp(280, this.width * 0.45, 560);
    this.spots = this.inputs ? this.net.all : this.net.bare;
    const rows = this.spots.rows + 2, layers = this.spots.layers + 1, shape = this.width / this.height;
    this.stepX = clamp(MIN_STEP_X, (rows * MIN_STEP_Y * shape) / layers, MAX_STEP_X);
    this.stepY = clamp(MIN_STEP_Y, (layers * this.stepX) / shape / rows, MAX_STEP_Y);
    this.high = Math.min(this.stepY * 0.7, 36);
    return { wide: layers * this.stepX, tall: rows * this.stepY };
  }

  place(node) {
    return [(this.spots.layer[node] + 0.5) * this.stepX, (this.spots.offset[node] + 1) * this.stepY];
  }

  shown(node) { return this.inputs || !this.net.isInput(node); }

  box({ x, y, wide, tall }) {
    return [(x + 0.5) * this.stepX - WIDE / 2 - 8, (y + 1) * this.stepY - this.high / 2 - 16, (wide - 1) * this.stepX + WIDE + 16, (tall - 1) * this.stepY + this.high + 24];
  }

  draw() {
    if (!this.at) return;
    this.measure();
    const colours = theme(), { k, x, y } = this.at;
    const g = sharpen(this.canvas, this.width, this.height);
    g.translate(x, y);
    g.scale(k, k);
    const seen = { x0: -x / k - WIDE, x1: (this.width - x) / k + WIDE, y0: -y / k - this.high, y1: (this.height - y) / k + this.high };
    this.drawFrames(g, colours, k);
    this.drawEdges(g, colours, seen, k);
    for (let node = 0; node < this.net.size; node++) this.drawNode(g, node, colours, seen, k);
  }

  drawFrames(g, colours, k) {
    g.lineWidth = 1.5 / k;
    g.font = `600 ${11 / k}px system-ui, sans-serif`;
    g.textBaseline = "bottom";
    g.textAlign = "left";
    for (const frame of this.net.frames) {
      const [x, y, wide, tall] = this.box(frame);
      g.fillStyle = colours.lane;
      g.strokeStyle = colours.neutral;
      g.fillRect(x, y, wide, tall);
      g.strokeRect(x, y, wide, tall);
      g.fillStyle = colours.text;
      g.fillText(this.net.groupName(frame.group), x, y - 2 / k, Math.max(wide, 60 / k));
    }
  }

  drawEdges(g, colours, seen, k) {
    const { source, target } = this.net.edges;
    const strokes = new Map(); // the edges of one colour
    const thin = source.length > MANY_EDGES; // lines of one pixel are drawn much faster
    for (let e = 0; e < source.length; e++) {
      const a = source[e], b = target[e];
      if (!this.shown(a)) continue;
      const [ax, ay] = this.place(a), [bx, by] = this.place(b);
      if (Math.max(ax, bx) < seen.x0 || Math.min(ax, bx) > seen.x1 || Math.max(ay, by) < seen.y0 || Math.min(ay, by) > seen.y1) continue;
      const near = !this.only || (this.only.has(a) && this.only.has(b));
      const crosses = near && this.crosses(a, b);
      const key = near ? (crosses ? this.net.main[a] : "local") : "far";
      if (!strokes.has(key)) strokes.set(key, []);
      strokes.get(key).push([ax + WIDE / 2, ay, bx - WIDE / 2, by]);
    }
    for (const [key, lines] of strokes) {
      const crosses = typeof key === "number";
      g.globalAlpha = key === "far" ? 0.12 : crosses ? 0.9 : 0.6;
      g.lineWidth = thin ? 1 / k : (crosses ? 1.6 : 0.8) / Math.max(k, 0.45);
      g.strokeStyle = crosses ? paint(key) : colours.neutral;
      for (let i = 0; i < lines.length; i += BATCH) {
        g.beginPath();
        for (const line of lines.slice(i, i + BATCH)) this.drawEdge(g, line, thin);
        g.stroke();
      }
    }
    g.globalAlpha = 1;
  }

  drawEdge(g, [ax, ay, bx, by], straight) {
    const bend = Math.max((bx - ax) / 2, WIDE / 4);
    g.moveTo(ax, ay);
    if (straight) g.lineTo(bx, by);
    else g.bezierCurveTo(ax + bend, ay, bx - bend, by, bx, by);
  }

  crosses(a, b) {
    const { main } = this.net;
    return !this.net.isGroup(a) && !this.net.isGroup(b) && main[a] >= 0 && main[b] >= 0 && main[a] !== main[b];
  }

  drawNode(g, node, colours, seen, k) {
    const [x, y] = this.place(node);
    if (!this.shown(node) || x < seen.x0 || x > seen.x1 || y < seen.y0 || y > seen.y1) return;
    const left = x - WIDE / 2, top = y - this.high / 2;
    const reached = this.reached ? this.reached[node] / Math.max(1, this.net.count[node]) : 1;
    g.globalAlpha = this.only && !this.only.has(node) ? 0.15 : 1;
    g.fillStyle = colours.page;
    g.fillRect(left, top, WIDE, this.high);
    let from = left;
    for (const [device, share] of this.shares[node]) {
      const width = WIDE * share * reached;
      g.fillStyle = paint(device);
      g.fillRect(from, top, width, this.high);
      from += width;
    }
    const marked = node === this.selected || node === this.newest, picked = this.picked.has(node);
    if (marked || picked || k > 0.5) {
      g.lineWidth = (marked ? 3 : picked ? 1.8 : 1) / k;
      g.strokeStyle = marked ? colours.chain : picked ? colours.text : colours.muted;
      g.strokeRect(left, top, WIDE, this.high);
    }
    if (k > 1.6) this.drawName(g, node, left, y, reached, colours);
    g.globalAlpha = 1;
  }

  drawName(g, node, left, y, reached, colours) {
    const one = this.shares[node].length === 1 && reached === 1 && this.shares[node][0][0] < this.data.colours.length;
    g.font = "6px system-ui, sans-serif";
    g.textBaseline = "middle";
    const name = this.net.name(node);
    const text = name.length > 12 ? `${name.slice(0, 11)}…` : name;
    if (!one && this.shares[node].length) { // several colours below the text
      g.fillStyle = colours.page;
      g.fillRect(left + 2, y - 4, Math.min(g.measureText(text).width + 2, WIDE - 4), 8);
    }
    g.fillStyle = one ? ink(this.data.colours[this.shares[node][0][0]]) : colours.text;
    g.fillText(text, left + 3, y + 0.4, WIDE - 6);
  }
}
