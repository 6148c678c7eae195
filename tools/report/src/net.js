// The nodes that the graph view draws, and how they hang together: vertices, or groups of them,
// of which some are open: their vertices are nodes of their own, inside a frame.

import { bisectRight, cumsum, max } from "d3-array";

export const MAX_OPEN = 4000; // vertices of one open group that are drawn one by one

export function makeNet(data, open = new Set()) {
  const { graph } = data;
  const table = data.traces[0].table;
  const vertices = table.name.length;
  const reads = readsOf(graph);
  const nodes = listNodes(graph, vertices, open); // { group, members, isGroup }
  const size = nodes.length;
  const node = new Int32Array(vertices);
  nodes.forEach((one, i) => { for (const v of one.members) node[v] = i; });
  const edges = edgesOf(reads, node, vertices, size);
  const before = Array.from({ length: size }, () => []), after = Array.from({ length: size }, () => []);
  edges.source.forEach((a, e) => { after[a].push(edges.target[e]); before[edges.target[e]].push(a); });
  const laid = graph.grouped ? layOut(graph, nodes, reads) : null;
  const all = laid ? laid.spots : spots(graph.layer, graph.offset);
  const bare = laid ? laid.spots : spots(graph.bareLayer, graph.bareOffset);
  const byLayer = new Map();
  all.layer.forEach((layer, i) => (byLayer.get(layer) || byLayer.set(layer, []).get(layer)).push(i));
  for (const row of byLayer.values()) row.sort((a, b) => all.offset[a] - all.offset[b]);
  const isInput = nodes.map((one) => one.members.every((v) => graph.isInput[v]));
  return {
    size, vertices, before, after, all, bare, edges, open, frames: laid ? laid.frames : [],
    nodeOf: (v) => node[v],
    isInput: (i) => isInput[i],
    isGroup: (i) => nodes[i].isGroup,
    group: (i) => nodes[i].group,
    groupName: (g) => graph.nodeNames[g],
    main: new Int32Array(size).fill(-1),
    count: nodes.map((one) => one.members.filter((v) => !graph.isInput[v]).length),
    placed: new Int32Array(size),
    first: isInput.findIndex((one) => !one),
    name(i) {
      const { group, members, isGroup } = nodes[i];
      if (!isGroup) return table.name[members[0]];
      return open.has(group) ? `${graph.nodeNames[group]}: ${members.length} more` : graph.nodeNames[group];
    },
    members: (i) => nodes[i].members,
    // For each node its devices and their shares, largest first; sets `main` and `placed` too.
    shares(trace) {
      return nodes.map(({ members }, i) => {
        const count = new Map();
        for (const v of members) if (trace.deviceOf[v] >= 0) count.set(trace.deviceOf[v], (count.get(trace.deviceOf[v]) || 0) + 1);
        const total = [...count.values()].reduce((a, b) => a + b, 0);
        const sorted = [...count].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
        this.placed[i] = total;
        this.main[i] = sorted.length ? sorted[0][0] : -1;
        return sorted.map(([device, n]) => [device, n / total]);
      });
    },
    related(i) {
      const found = new Set([i]);
      for (const next of [before, after]) {
        const seen = new Set([i]), left = [i];
        while (left.length) for (const one of next[left.pop()]) if (!seen.has(one)) { seen.add(one); left.push(one); }
        for (const one of seen) found.add(one);
      }
      return found;
    },
    beside(i, step) {
      const row = byLayer.get(all.layer[i]);
      return row[row.indexOf(i) + step];
    },
  };
}

const spots = (layer, offset) => ({ layer, offset, layers: max(layer) || 0, rows: max(offset) || 0 });

// The producers that each vertex reads: those of vertex v are from pointers[v] to pointers[v + 1].
export function readsOf(graph) {
  graph.pointers = graph.pointers || Uint32Array.from([0, ...cumsum(graph.reads[0])]);
  return { pointers: graph.pointers, producers: graph.reads[1] };
}

function listNodes(graph, vertices, open) {
  if (!graph.grouped) return Array.from({ length: vertices }, (_, v) => ({ group: -1, members: [v], isGroup: false }));
  const inside = graph.nodeNames.map(() => []);
  graph.nodeOf.forEach((g, v) => inside[g].push(v));
  return inside.flatMap((members, group) => {
    if (!open.has(group)) return [{ group, members, isGroup: true }];
    const single = members.slice(0, MAX_OPEN).map((v) => ({ group, members: [v], isGroup: false }));
    return members.length > MAX_OPEN ? [...single, { group, members: members.slice(MAX_OPEN), isGroup: true }] : single;
  });
}

// Each pair of nodes once; none from a node to itself.
function edgesOf({ pointers, producers }, node, vertices, size) {
  const seen = new Set(), source = [], target = [];
  for (let v = 0; v < vertices; v++)
    for (let e = pointers[v]; e < pointers[v + 1]; e++) {
      const a = node[producers[e]], b = node[v];
      if (a === b || seen.has(a * size + b)) continue;
      seen.add(a * size + b);
      source.push(a);
      target.push(b);
    }
  return { source, target };
}

// Where nodes go: groups as they are given, open ones as blocks that push others right and down.
function layOut(graph, nodes, reads) {
  const blocks = graph.nodeNames.map(() => null);
  nodes.forEach((one, i) => { (blocks[one.group] = blocks[one.group] || []).push(i); });
  const shapes = blocks.map((own) => (own.length > 1 ? shapeOf(own, nodes, reads) : { wide: 1, tall: 1, cells: [[0, 0]] }));
  const layers = (max(graph.layer) || 0) + 1;
  const wide = new Array(layers).fill(1);
  shapes.forEach((shape, g) => { wide[graph.layer[g]] = Math.max(wide[graph.layer[g]], shape.wide + (shape.wide > 1 ? 0.6 : 0)); });
  const left = [0, ...cumsum(wide)];
  const layer = new Array(nodes.length), offset = new Array(nodes.length), frames = [];
  for (let l = 0; l < layers; l++) {
    const own = blocks.map((_, g) => g).filter((g) => graph.layer[g] === l).sort((a, b) => graph.offset[a] - graph.offset[b]);
    let free = -Infinity;
    for (const g of own) {
      const { cells, tall, wide: across } = shapes[g];
      const isOpen = blocks[g].length > 1;
      const top = Math.max(free, graph.offset[g] - (tall - 1) / 2, isOpen ? 1.2 : 0);
      blocks[g].forEach((i, n) => { layer[i] = left[l] + cells[n][0]; offset[i] = top + cells[n][1]; });
      if (isOpen) frames.push({ group: g, x: left[l], y: top, wide: across, tall });
      free = top + tall + (isOpen ? 1.4 : 0);
    }
  }
  if (frames.length) centre(layer, offset, left, frames);
  return { spots: spots(layer, offset), frames };
}

// Put the middle of every layer at the same height: open groups make some of them tall.
function centre(layer, offset, left, frames) {
  const at = (x) => bisectRight(left, x) - 1;
  const low = new Map(), high = new Map();
  layer.forEach((x, i) => {
    const l = at(x);
    low.set(l, Math.min(low.get(l) ?? Infinity, offset[i]));
    high.set(l, Math.max(high.get(l) ?? 0, offset[i]));
  });
  const middle = Math.max(...[...low.keys()].map((l) => (low.get(l) + high.get(l)) / 2));
  const shift = (l) => middle - (low.get(l) + high.get(l)) / 2;
  layer.forEach((x, i) => { offset[i] += shift(at(x)); });
  for (const frame of frames) frame.y += shift(at(frame.x));
}

// The cells of an open group: by the level inside the group, long levels in several columns.
function shapeOf(own, nodes, { pointers, producers }) {
  const number = new Map();
  own.forEach((i, n) => { for (const v of nodes[i].members) number.set(v, n); });
  const level = new Int32Array(own.length), waits = new Int32Array(own.length);
  const next = own.map(() => []);
  for (const [v, n] of number)
    for (let e = pointers[v]; e < pointers[v + 1]; e++) {
      const from = number.get(producers[e]);
      if (from !== undefined && from !== n) { next[from].push(n); waits[n] += 1; }
    }
  const ready = [...own.keys()].filter((n) => !waits[n]);
  while (ready.length) {
    const n = ready.pop();
    for (const one of next[n]) {
      level[one] = Math.max(level[one], level[n] + 1);
      if (!--waits[one]) ready.push(one);
    }
  }
  const most = Math.max(6, Math.ceil(Math.sqrt(own.length * 2)));
  const rows = [...own.keys()].sort((a, b) => level[a] - level[b] || a - b);
  const cells = new Array(own.length);
  let column = 0, row = 0, at = level[rows[0]], tall = 1;
  for (const n of rows) {
    if (level[n] !== at || row === most) { column += 1; row = 0; at = level[n]; }
    cells[n] = [column, row++];
    tall = Math.max(tall, row);
  }
  return { wide: column + 1, tall, cells };
}
