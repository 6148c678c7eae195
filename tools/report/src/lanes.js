// Which lanes a timeline has, and where: devices with their slots, links with their transfers.

import { bisector } from "d3-array";
import { pack } from "./model.js";

export const MAX_LINKS = 16; // of more, transfers are shown by the device they go to
const EXEC = 24, SLOT = 15, TRANSFER = 9, GAP = 5, MAX_LINK_LANES = 4, MAX_EXEC_LANES = 8;
export const TOP = 30;

// traces: one, or two of the same assignment, which then share their lanes.
export function makeLanes(traces, transfers) {
  const lanes = [];
  let y = TOP;
  const add = (label, kind, index, rowsOf, most, one, several) => {
    const lane = { label, kind, index, y, tracks: [] };
    traces.forEach((trace, which) => {
      const packed = pack(rowsOf(trace), trace);
      const height = packed.length > 1 ? several : one;
      packed.forEach((rows, i) => {
        if (i < most) { lane.tracks.push({ trace, which, rows, y, height }); y += height + 1; }
        else lane.tracks[lane.tracks.length - 1].rows.push(...rows);
      });
      for (const track of lane.tracks) track.rows.sort((a, b) => trace.tasks.begin[a] - trace.tasks.begin[b]);
    });
    lane.height = y - lane.y - 1;
    y += GAP;
    lanes.push(lane);
  };
  const rows = traces.map(byResource);
  const of = (kind, index) => (trace) => rows[traces.indexOf(trace)][kind][index];
  traces[0].devices.forEach((device, d) => {
    add(device.name, "device", d, of("device", d), MAX_EXEC_LANES, EXEC, SLOT);
    if (transfers === "device" && traces.some((trace) => of("arrival", d)(trace).length)) {
      y -= GAP - 1;
      add("in", "link", d, of("arrival", d), MAX_LINK_LANES, TRANSFER, 5);
    }
  });
  if (transfers === "link")
    traces[0].links.forEach((link, l) => {
      if (traces.some((trace) => of("link", l)(trace).length))
        add(link.name, "link", l, of("link", l), MAX_LINK_LANES, TRANSFER, TRANSFER);
    });
  return { lanes, height: y + 4 };
}

function byResource(trace) {
  const lists = (places) => places.map(() => []);
  const found = { device: lists(trace.devices), arrival: lists(trace.devices), link: lists(trace.links) };
  for (let row = 0; row < trace.size; row++) {
    const link = trace.tasks.link[row], device = trace.tasks.device[row];
    if (link < 0) found.device[device].push(row);
    else {
      found.link[link].push(row);
      found.arrival[device]?.push(row); // none for the host
    }
  }
  return found;
}

// The first position in a track whose task may reach beyond a time.
export function firstVisible(track, time) {
  const { begin } = track.trace.tasks;
  return Math.max(0, bisector((row) => begin[row]).right(track.rows, time) - 1);
}

// The task at a time, or the nearest one within a tolerance.
export function taskAt(track, time, tolerance) {
  const { begin, end } = track.trace.tasks;
  let best = -1, distance = tolerance;
  for (let i = firstVisible(track, time - tolerance); i < track.rows.length; i++) {
    const row = track.rows[i];
    if (begin[row] > time + tolerance) break;
    const away = time < begin[row] ? begin[row] - time : Math.max(0, time - end[row]);
    if (away <= distance) { best = row; distance = away; }
  }
  return best;
}
