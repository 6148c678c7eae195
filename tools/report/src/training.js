// Training curves: makespans of the episodes, exercise by exercise, over the updates of a run.

import { extent, ticks } from "d3-array";
import { scaleLinear } from "d3-scale";
import { line } from "d3-shape";
import { amount, h, keepingOpen, percent, s, seconds } from "./dom.js";

const WIDTH = 560, HEIGHT = 220, LEFT = 64, BOTTOM = 26, TOP = 8, RIGHT = 8, MAX_CURVES = 24;
const NAMES = 112, ROW = 13, LONGEST = 16; // of the names of placers, right of the lines
const FAR = 1.5; // times the longest makespan of the curves: lines above are only named
const LINES = [["mean_s", "mean of the episodes"], ["least_s", "shortest episode"], ["best_s", "best so far"]];

export function training(data) {
  if (!data.runs.length) return null;
  const section = h("section", { id: "training", "aria-labelledby": "training-title" });
  const refresh = () => keepingOpen(section, () => section.replaceChildren(h("h2", { id: "training-title" }, "Training"), ...comparison(data), legend(),
    ...data.runs.map((run) => h("div", {}, h("h3", {}, run.name),
      run.curves.length ? h("div", { class: "columns" }, run.curves.slice(0, MAX_CURVES).map(chart)) : h("p", {}, "no update yet"),
      more(run.curves.length)))));
  refresh();
  return { section, refresh };
}

const more = (count) => (count > MAX_CURVES ? h("p", { class: "hint" }, `and ${count - MAX_CURVES} more exercises`) : "");

const sample = (attributes) => s("svg", { width: 24, height: 12, "aria-hidden": "true" }, s("path", { d: "M0 6H24", ...attributes }));

const legend = () => h("ul", { class: "legend", "aria-label": "Curves" },
  [...LINES.map(([, name]) => name), "lower bound", "placers that need no training"].map((name, i) => h("li", {}, sample({ class: `curve curve${i}` }), name)));

function chart(curve) {
  const best = curve.best_s[curve.best_s.length - 1];
  const gap = curve.bound_s && best !== null ? `, gap ${percent(best / curve.bound_s - 1)}` : "";
  const rate = curve.episodesPerS ? `, ${Number(curve.episodesPerS.toPrecision(3))} episodes per second` : "";
  const end = `${best === null ? "no assignment yet" : `best ${seconds(best)}${gap}`}${rate}`;
  const name = `${curve.stage}: ${curve.exercise}`;
  const losses = { step: curve.step, values: curve.loss, look: { class: "curve curve1" } };
  return h("div", {}, draw(name, end, curve.bound_s,
    LINES.map(([key], i) => ({ step: curve.step, values: curve[key], look: { class: `curve curve${i}` } })), curve.untrained),
  curve.loss ? h("details", {}, h("summary", {}, "Loss"), draw(name, "loss", 0, [losses], [], (value) => amount(value, ""))) : null);
}

// The best so far of several runs of the same exercise, in one chart.
function comparison(data) {
  const found = new Map();
  data.runs.forEach((run, number) => run.curves.forEach((curve) => {
    const key = JSON.stringify([curve.stage, curve.exercise]);
    found.set(key, [...(found.get(key) || []), { number, curve }]);
  }));
  const shared = [...found.values()].filter((own) => own.length > 1);
  if (!shared.length) return [];
  const look = (number) => ({ class: "curve compared", stroke: data.colours[number % data.colours.length], "stroke-dasharray": number >= data.colours.length ? "6 3" : null });
  return [h("h3", {}, "Runs compared: best so far"),
    h("ul", { class: "legend", "aria-label": "Runs" }, data.runs.map((run, number) => h("li", {}, sample(look(number)), run.name))),
    h("div", { class: "columns compared" }, shared.slice(0, MAX_CURVES).map((own) => {
      const { stage, exercise, bound_s, untrained } = own[0].curve;
      const ends = own.map(({ number, curve }) => {
        const best = curve.best_s[curve.best_s.length - 1];
        return `${data.runs[number].name} ${best === null ? "none yet" : seconds(best)}`;
      });
      return draw(`${stage}: ${exercise}`, ends.join(", "), bound_s, own.map(({ number, curve }) => ({ step: curve.step, values: curve.best_s, look: look(number) })), untrained);
    })), more(shared.length)];
}

// Where names of lines go, so that none covers another: as near to their lines as there is room.
function spread(heights) {
  const placed = heights.map((height, i) => ({ height, i })).sort((a, b) => a.height - b.height);
  placed.forEach((one, k) => { one.height = Math.max(one.height, TOP + ROW * k + 4, k ? placed[k - 1].height + ROW : 0); });
  const over = placed.length ? Math.max(0, placed[placed.length - 1].height - (HEIGHT - BOTTOM)) : 0;
  for (let k = placed.length - 1, most = HEIGHT - BOTTOM; over && k >= 0; k--, most -= ROW) placed[k].height = Math.min(placed[k].height, most);
  return placed.sort((a, b) => a.i - b.i).map(({ height }) => height);
}

const short = (name) => (name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name);

// Placers that need no training: a line each, and its name right of it.
function placerLines(untrained, y, right) {
  const names = spread(untrained.map(([, value]) => y(value)));
  return untrained.map(([name, value], i) => s("g", { class: "placer" }, s("title", {}, `${name} ${seconds(value)}`),
    s("path", { d: `M${LEFT} ${y(value)}H${right}`, class: "curve curve4" }),
    s("path", { d: `M${right} ${y(value)}L${right + 8} ${names[i]}`, class: "grid" }),
    s("text", { x: right + 11, y: names[i] + 4 }, short(name))));
}

function draw(name, about, bound_s, lines, untrained, text = seconds) {
  const known = lines.flatMap(({ values }) => values).filter((value) => value !== null);
  const most = Math.max(...known), far = known.length ? FAR * most : Infinity;
  const near = untrained.filter(([, value]) => value <= far), right = WIDTH - (near.length ? NAMES : RIGHT);
  const all = [...known, ...near.map(([, value]) => value)];
  const low = Math.min(...all, bound_s || Infinity);
  const x = scaleLinear(extent(lines.flatMap(({ step }) => step)), [LEFT, right]);
  const y = scaleLinear([low, Math.max(...all, low)], [HEIGHT - BOTTOM, TOP]).nice();
  const path = ({ step, values }) => line((_, i) => x(step[i]), (value) => y(value)).defined((value) => value !== null)(values);
  const grid = y.ticks(4).map((tick) => [s("path", { d: `M${LEFT} ${y(tick)}H${right}`, class: "grid" }),
    s("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, text(tick))]).flat();
  const below = ticks(...x.domain(), 5).filter(Number.isInteger).map((tick) =>
    s("text", { x: x(tick), y: HEIGHT - 8, "text-anchor": "middle" }, tick));
  const said = untrained.map(([placer, value]) => `${placer} ${seconds(value)}${value > far ? " (above the chart)" : ""}`).join(", ");
  return h("figure", { class: "chart" }, h("figcaption", {}, h("strong", {}, name), ` ${about}`),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "curves", role: "img",
      "aria-label": `${name}: ${lines[0].step.length} points, ${about}${said && `; without training: ${said}`}` }, grid, below,
    placerLines(near, y, right),
    lines.map((one) => s("path", { d: path(one) || "", ...one.look })),
    bound_s ? s("path", { d: `M${LEFT} ${y(bound_s)}H${right}`, class: "curve curve3" }) : null),
    said ? h("p", { class: "hint" }, `Without training: ${said}`) : null);
}
