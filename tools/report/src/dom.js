// Elements, and numbers for people. Every text goes in as a text node: names are data.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const s = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

const digits = (value) => String(Number(value.toPrecision(4)));

export function seconds(value) {
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]])
    if (size >= scale) return `${digits(value / scale)} ${unit}`;
  return `${digits(value / 1e-9)} ns`;
}

export function amount(value, unit) {
  for (const [prefix, scale] of [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]])
    if (value >= scale) return `${digits(value / scale)} ${prefix}${unit}`;
  return `${digits(value)} ${unit}`;
}

export const percent = (value) => `${(100 * value).toFixed(1)} %`;

export function select(label, options, onchange) {
  const control = h("select", { "aria-label": label, onchange: () => onchange(control.value) },
    options.map(([value, text]) => h("option", { value }, text)));
  return { element: h("label", { class: "field" }, h("span", {}, label), control), control };
}

export function checkbox(label, checked, onchange) {
  const box = h("input", { type: "checkbox", checked, onchange: () => onchange(box.checked) });
  return h("label", { class: "field check" }, box, h("span", {}, label));
}

export const button = (label, title, onclick) =>
  h("button", { type: "button", title, "aria-label": title, onclick }, label);

export function table(caption, heads, rows, left = 1) {
  const cell = (tag, i, value, extra) => h(tag, { class: i < left ? null : "number", ...extra }, value);
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption),
      h("thead", {}, h("tr", {}, heads.map((text, i) => cell("th", i, text, { scope: "col" })))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value, i) =>
        i === 0 ? cell("th", i, value, { scope: "row" }) : cell("td", i, value)))))));
}

// Make the parts of an element anew; what was unfolded stays so.
export function keepingOpen(element, make) {
  const open = [...element.querySelectorAll("details")].map((one) => one.open);
  make();
  element.querySelectorAll("details").forEach((one, i) => { one.open = open[i]; });
}
