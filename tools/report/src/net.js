// The nodes that the graph view draws, and how they hang together: vertices, or groups of them.

const most = (values) => values.reduce((a, b) => Math.max(a, b), 0);
const spots = (layer, offset) => ({ layer, offset, layers: most(layer), rows: most(offset) });

export function makeNet(data) {
  const { graph } = data;
  const table = data.traces[0].table;
  const vertices = table.name.length;
  const size = graph.layer.length;
  const nodeOf = graph.grouped ? (v) => graph.nodeOf[v] : (v) => v;
  const lists = () => Array.from({ length: size }, () => []);
  const inside = lists();
  for (let v = 0; v < vertices; v++) inside[nodeOf(v)].push(v);
  const before = lists(), after = lists();
  const { source, target } = graph.edges;
  source.forEach((a, e) => { after[a].push(target[e]); before[target[e]].push(a); });
  const byLayer = new Map();
  graph.layer.forEach((layer, node) => (byLayer.get(layer) || byLayer.set(layer, []).get(layer)).push(node));
  for (const nodes of byLayer.values()) nodes.sort((a, b) => graph.offset[a] - graph.offset[b]);
  const isInput = (node) => inside[node].every((v) => graph.isInput[v]);
  return {
    size, vertices, nodeOf, isInput, before, after,
    all: spots(graph.layer, graph.offset), bare: spots(graph.bareLayer, graph.bareOffset), edges: graph.edges,
    main: new Int32Array(size).fill(-1),
    count: inside.map((one) => one.filter((v) => !graph.isInput[v]).length),
    placed: new Int32Array(size),
    first: inside.findIndex((_, node) => !isInput(node)),
    name: (node) => (graph.grouped ? graph.nodeNames[node] : table.name[node]),
    members: (node) => inside[node],
    // For each node its devices and their shares, largest first; sets `main` and `placed` too.
    shares(trace) {
      return inside.map((members, node) => {
        const count = new Map();
        for (const v of members) if (trace.deviceOf[v] >= 0) count.set(trace.deviceOf[v], (count.get(trace.deviceOf[v]) || 0) + 1);
        const total = [...count.values()].reduce((a, b) => a + b, 0);
        const sorted = [...count].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
        this.placed[node] = total;
        this.main[node] = sorted.length ? sorted[0][0] : -1;
        return sorted.map(([device, n]) => [device, n / total]);
      });
    },
    related(node) {
      const found = new Set([node]);
      for (const next of [before, after]) {
        const seen = new Set([node]), left = [node];
        while (left.length) for (const one of next[left.pop()]) if (!seen.has(one)) { seen.add(one); left.push(one); }
        for (const one of seen) found.add(one);
      }
      return found;
    },
    beside(node, step) {
      const nodes = byLayer.get(graph.layer[node]);
      return nodes[nodes.indexOf(node) + step];
    },
  };
}
