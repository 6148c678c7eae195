// Dragging what is selected to a device, and selecting with a rectangle, on timelines and the graph.

import { h } from "./dom.js";

const FAR = 5; // pixels: less is a click

// view: has a canvas, verticesAt(event) and verticesWithin(box). actions: selection, deviceAt(x, y),
// aim(device or null), drop(device), pick(vertices, adds).
export function makeDraggable(view, actions) {
  const { canvas } = view;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button || event.pointerType === "touch") return;
    if (event.shiftKey) band(event, view, actions);
    else if (isSelected(event, view, actions)) carry(event, view, actions);
  });
}

// Whether a press belongs to us: panning must leave it alone.
export function takes(event, view, actions) {
  return event.type === "mousedown" && (event.shiftKey || isSelected(event, view, actions));
}

const isSelected = (event, view, actions) => view.verticesAt(event).some((v) => actions.selection.has(v));

function follow(start, canvas, moved, ended) {
  let far = false;
  const move = (event) => {
    far = far || Math.hypot(event.clientX - start.clientX, event.clientY - start.clientY) > FAR;
    if (far) moved(event);
  };
  const stop = (event, done) => {
    canvas.removeEventListener("pointermove", move);
    canvas.removeEventListener("pointerup", up);
    canvas.removeEventListener("pointercancel", cancel);
    document.removeEventListener("keydown", key, true);
    ended(event, done && far);
  };
  const up = (event) => stop(event, true), cancel = (event) => stop(event, false);
  const key = (event) => { if (event.key === "Escape") { event.stopPropagation(); stop(event, false); } };
  canvas.setPointerCapture(start.pointerId);
  canvas.addEventListener("pointermove", move);
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", cancel);
  document.addEventListener("keydown", key, true);
}

function carry(start, view, actions) {
  const ghost = h("div", { class: "ghost", "aria-hidden": "true" });
  follow(start, view.canvas, (event) => {
    const device = actions.deviceAt(event.clientX, event.clientY);
    ghost.textContent = actions.describe(device);
    ghost.style.setProperty("left", `${event.clientX + 12}px`);
    ghost.style.setProperty("top", `${event.clientY + 12}px`);
    if (!ghost.isConnected) document.body.append(ghost);
    actions.aim(device);
  }, (event, done) => {
    ghost.remove();
    actions.aim(null);
    if (!done) return;
    actions.wasDragged();
    const device = actions.deviceAt(event.clientX, event.clientY);
    if (device !== null) actions.drop(device);
  });
}

function band(start, view, actions) {
  const box = h("div", { class: "band", "aria-hidden": "true" });
  const edges = (event) => ({
    left: Math.min(start.clientX, event.clientX), right: Math.max(start.clientX, event.clientX),
    top: Math.min(start.clientY, event.clientY), bottom: Math.max(start.clientY, event.clientY),
  });
  follow(start, view.canvas, (event) => {
    const { left, top, right, bottom } = edges(event);
    for (const [key, value] of Object.entries({ left, top, width: right - left, height: bottom - top })) box.style.setProperty(key, `${value}px`);
    if (!box.isConnected) document.body.append(box);
  }, (event, done) => {
    box.remove();
    if (!done) return;
    actions.wasDragged();
    actions.pick(view.verticesWithin(edges(event)), true);
  });
}
