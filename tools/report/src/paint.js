// Colours of the theme, of devices and of kinds; canvases that are sharp on every screen.

const HATCHES = 8;
let palette = [];
const patterns = new Map();

export function setPalette(colours) { palette = colours; }

let current = null;

// The colours of the theme; they are looked up once, until the theme changes.
export function theme() {
  current = current || lookUp();
  return current;
}

export function themeChanged() { current = null; }

function lookUp() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    text: get("text"), muted: get("muted"), line: get("line"), lane: get("lane"), page: get("page"),
    chain: get("chain"), accent: get("accent"), slower: get("slower"), faster: get("faster"), neutral: get("neutral"),
  };
}

const hex = (number) => palette[number % palette.length];
const hatchOf = (number) => Math.floor(number / palette.length) % HATCHES;

// The fill of device or kind `number` on a canvas: a colour, or from the seventeenth on a pattern.
export function paint(number) {
  if (number < 0) return theme().neutral;
  const hatch = hatchOf(number);
  if (!hatch) return hex(number);
  const key = `${number % palette.length}/${hatch}`;
  if (!patterns.has(key)) patterns.set(key, pattern(hex(number), hatch));
  return patterns.get(key);
}

function pattern(colour, hatch) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const g = tile.getContext("2d");
  g.fillStyle = colour;
  g.fillRect(0, 0, 8, 8);
  g.strokeStyle = g.fillStyle = ink(colour);
  g.lineWidth = 1.5;
  g.beginPath();
  if (hatch & 1) { g.moveTo(-2, 10); g.lineTo(10, -2); g.moveTo(-2, 2); g.lineTo(2, -2); g.moveTo(6, 10); g.lineTo(10, 6); }
  if (hatch & 2) { g.moveTo(-2, -2); g.lineTo(10, 10); g.moveTo(6, -2); g.lineTo(10, 2); g.moveTo(-2, 6); g.lineTo(2, 10); }
  if (hatch & 4) { g.moveTo(0, 4); g.lineTo(8, 4); }
  g.stroke();
  return g.createPattern(tile, "repeat");
}

// Black or white, whichever can be read on a colour.
export function ink(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16) / 255)
    .map((p) => (p <= 0.04045 ? p / 12.92 : ((p + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000000" : "#ffffff";
}

export const inkOn = (number) => (number < 0 || hatchOf(number) ? theme().text : ink(hex(number)));

export function swatch(number, size = 12) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  canvas.className = "swatch";
  canvas.setAttribute("aria-hidden", "true");
  const g = canvas.getContext("2d");
  g.fillStyle = paint(number);
  g.fillRect(0, 0, size, size);
  return canvas;
}

export function sharpen(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.setProperty("height", `${height}px`);
  }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
}
