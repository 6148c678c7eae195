// Training curves: makespans of the episodes, exercise by exercise, over the updates of a run.

import { extent, ticks } from "d3-array";
import { scaleLinear } from "d3-scale";
import { line } from "d3-shape";
import { h, percent, s, seconds } from "./dom.js";

const WIDTH = 560, HEIGHT = 220, LEFT = 64, BOTTOM = 26, TOP = 8, RIGHT = 8, MAX_CURVES = 24;
const LINES = [["mean_s", "mean of the episodes"], ["least_s", "shortest episode"], ["best_s", "best so far"]];

export function training(data) {
  if (!data.runs.length) return null;
  const legend = h("ul", { class: "legend", "aria-label": "Curves" },
    [...LINES.map(([, name]) => name), "lower bound"].map((name, i) => h("li", {},
      s("svg", { width: 24, height: 12, "aria-hidden": "true" }, s("path", { d: "M0 6H24", class: `curve curve${i}` })), name)));
  return { section: h("section", { id: "training", "aria-labelledby": "training-title" },
    h("h2", { id: "training-title" }, "Training"), legend, data.runs.map((run) => h("div", {}, h("h3", {}, run.name),
      run.curves.length ? h("div", { class: "columns" }, run.curves.slice(0, MAX_CURVES).map(chart)) : h("p", {}, "no update yet"),
      run.curves.length > MAX_CURVES ? h("p", { class: "hint" }, `and ${run.curves.length - MAX_CURVES} more exercises`) : null))) };
}

function chart(curve) {
  const known = LINES.flatMap(([key]) => curve[key]).filter((value) => value !== null);
  const low = Math.min(...known, curve.bound_s || Infinity);
  const x = scaleLinear(extent(curve.step), [LEFT, WIDTH - RIGHT]);
  const y = scaleLinear([low, Math.max(...known, low)], [HEIGHT - BOTTOM, TOP]).nice();
  const path = line((_, i) => x(curve.step[i]), (value) => y(value)).defined((value) => value !== null);
  const best = curve.best_s[curve.best_s.length - 1];
  const gap = curve.bound_s && best !== null ? `, gap ${percent(best / curve.bound_s - 1)}` : "";
  const end = best === null ? "no assignment yet" : `best ${seconds(best)}${gap}`;
  const grid = y.ticks(4).map((tick) => [s("path", { d: `M${LEFT} ${y(tick)}H${WIDTH - RIGHT}`, class: "grid" }),
    s("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, seconds(tick))]).flat();
  const below = ticks(...x.domain(), 5).filter(Number.isInteger).map((tick) =>
    s("text", { x: x(tick), y: HEIGHT - 8, "text-anchor": "middle" }, tick));
  return h("figure", { class: "chart" }, h("figcaption", {}, h("strong", {}, `${curve.stage}: ${curve.exercise}`), ` ${end}`),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "curves", role: "img",
      "aria-label": `${curve.stage}, ${curve.exercise}: ${curve.step.length} points, ${end}` }, grid, below,
    LINES.map(([key], i) => s("path", { d: path(curve[key]) || "", class: `curve curve${i}` })),
    curve.bound_s ? s("path", { d: `M${LEFT} ${y(curve.bound_s)}H${WIDTH - RIGHT}`, class: "curve curve3" }) : null));
}
