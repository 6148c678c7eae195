// The data of the page, unpacked, and what several views ask of it.

export async function load() {
  const packed = JSON.parse(document.getElementById("data").textContent);
  const bytes = Uint8Array.from(atob(packed), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = JSON.parse(await new Response(stream).text());
  for (const table of data.vertices) if (table.numbered) table.name = table.name.map((name, v) => name || `vertex ${v}`);
  for (const trace of data.traces) unpack(trace, data);
  return data;
}

// The trace with its columns as values; those that it came with stay as `packed`.
export function unpack(trace, data) {
  const packed = (trace.packed = trace.tasks);
  const size = (trace.size = packed.vertex.length);
  const [begin, end, ready] = [0, 0, 0].map(() => new Float64Array(size));
  const after = new Int32Array(size), before = new Int32Array(size);
  for (let row = 0, tick = 0; row < size; row++) { // differences become values
    tick += packed.begin[row];
    begin[row] = tick * trace.tick_s;
    end[row] = (tick + packed.takes[row]) * trace.tick_s;
    ready[row] = (tick - packed.wait[row]) * trace.tick_s;
    after[row] = row - packed.after[row];
    before[row] = row - packed.before[row];
  }
  const tasks = (trace.tasks = { ...packed, begin, end, ready, after, before });
  trace.table = data.vertices[trace.vertices];
  trace.reasons = data.reasons;
  trace.onChain = new Uint8Array(size);
  for (const row of trace.chain) trace.onChain[row] = 1;
  trace.execOf = new Int32Array(trace.table.name.length).fill(-1);
  for (let row = 0; row < size; row++)
    if (tasks.link[row] < 0 && !(tasks.count?.[row] > 1)) trace.execOf[tasks.vertex[row]] = row;
}

// Take what a server says of a trace: all of it, or the rows from `keep` on.
export function update(trace, said, data) {
  const { keep, tasks, ...facts } = said;
  const rows = keep ? Object.fromEntries(Object.entries(tasks).map(([key, column]) => [key, trace.packed[key].slice(0, keep).concat(column)])) : tasks;
  Object.assign(trace, facts, { tasks: rows });
  unpack(trace, data);
}

// The name of a device; the number after the last one is the host.
export const deviceName = (trace, d) => (d < 0 ? "none" : d < trace.devices.length ? trace.devices[d].name : "host");

export const isTransfer = (trace, row) => trace.tasks.link[row] >= 0;

export function title(trace, row) {
  const { tasks, table } = trace;
  if (tasks.count?.[row] > 1) return `${tasks.count[row]} ${isTransfer(trace, row) ? "transfers" : "operations"}`;
  const name = table.name[tasks.vertex[row]];
  if (!isTransfer(trace, row)) return name;
  return `${name}: ${deviceName(trace, tasks.source[row])} → ${deviceName(trace, tasks.device[row])}`;
}

// Rows in lanes that do not overlap: each goes to the first lane that is free; those that take no
// time need no lane of their own.
export function pack(rows, trace) {
  const { begin, end } = trace.tasks;
  const slack = trace.makespan * 1e-9; // times are rounded
  const lanes = [], ends = [];
  for (const row of rows) {
    const takes = end[row] - begin[row] > slack;
    let lane = takes ? ends.findIndex((until) => until <= begin[row] + slack) : 0;
    if (lane < 0 || !lanes.length) lane = lanes.push([]) - 1;
    lanes[lane].push(row);
    ends[lane] = Math.max(ends[lane] ?? 0, end[row]);
  }
  return lanes.length ? lanes : [[]];
}

// What identifies a task in every trace with the same assignment.
export const identity = (trace, row) => (trace.tasks.count?.[row] > 1 ? `merged/${trace.name}/${row}` :
  `${trace.tasks.link[row] < 0 ? "exec" : "transfer"}/${trace.tasks.vertex[row]}/${trace.tasks.output[row]}/${trace.tasks.device[row]}`);

export function moved(a, b) {
  const vertices = [];
  for (let v = 0; v < a.deviceOf.length; v++)
    if (a.deviceOf[v] !== b.deviceOf[v]) vertices.push(v);
  return vertices;
}

export const sameAssignment = (a, b) => a.vertices === b.vertices && a.devices.length === b.devices.length && a.deviceOf.every((d, v) => d === b.deviceOf[v]);
