"use strict";
const parsed = (id) => JSON.parse(document.getElementById(id).textContent);

// Vega-Lite cannot place labels, but Vega can; charts/__init__.py does the same for SVG files.
const anchors = parsed("anchors");
function placeLabels(marks, fill) {
  for (const mark of marks) {
    const style = [mark.style].flat().find((name) => name in anchors);
    if (style) {
      const avoidMarks = marks.filter((other) => other.type === "symbol").map((other) => other.name);
      const size = { signal: "[width, height]" };
      mark.transform = [{ type: "label", size, anchor: anchors[style], offset: [7], avoidMarks }];
      mark.encode.update.fill = { value: fill };
    }
    placeLabels(mark.marks || [], fill);
  }
}

// Charts are drawn when they come into view, and again when the colors change.
const specs = parsed("specs");
const dark = matchMedia("(prefers-color-scheme: dark)");
const drawn = new Set();
function draw(place) {
  drawn.add(place);
  const spec = specs[place.dataset.spec];
  const fit = { width: place.clientWidth, autosize: { type: "fit-x", contains: "padding" } };
  // Charts with several panels keep their width and scroll.
  const size = spec.vconcat || spec.facet ? {} : fit;
  // The panels of the overview share the page's legend.
  const small = place.dataset.height;
  if (small) size.height = Number(small);
  const patch = (vega) => {
    placeLabels(vega.marks, dark.matches ? "#e6edf3" : "#1b1f24");
    if (small) delete vega.legends;
    return vega;
  };
  const many = Object.values(spec.datasets).flat().length > 5000;
  const theme = { ...(dark.matches ? { theme: "dark" } : {}), renderer: many ? "canvas" : "svg", actions: false };
  const config = { background: "transparent", font: "system-ui, sans-serif" };
  vegaEmbed(place, { ...spec, ...size }, { ...theme, config, patch }).then(() => { place.dataset.drawn = "yes"; });
}
const inView = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) {
      inView.unobserve(entry.target);
      draw(entry.target);
    }
  }
}, { rootMargin: "400px" });
document.querySelectorAll(".chart").forEach((place) => inView.observe(place));
dark.addEventListener("change", () => drawn.forEach(draw));
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) drawn.forEach(draw);
  width = innerWidth;
});
addEventListener("beforeprint", () => document.querySelectorAll(".chart").forEach((place) => drawn.has(place) || draw(place)));

// Tables: clicking a column sorts by it, numerically with units (900 KiB before 1 MiB); empty cells stay last.
const units = { "%": 0.01, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
function figure(text) {
  const [, number, unit] = /^([-+]?[\d.]+(?:e[-+]?\d+)?) ?(\D*)$/.exec(text) || [];
  return unit && !(unit in units) ? NaN : number * (units[unit] || 1);
}
function sortBy(table, column, down) {
  const value = (row) => row.cells[column].textContent.trim();
  const rows = [...table.tBodies[0].rows];
  rows.sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (!a || !b) return Boolean(b) - Boolean(a);
    const difference = figure(a) - figure(b);
    const order = isNaN(difference) ? a.localeCompare(b) : difference;
    return down ? -order : order;
  });
  table.tBodies[0].append(...rows);
}
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    sortBy(table, column, down);
  }));
}

// The details of a run are added when opened, so that a thousand runs cost nothing before.
const list = document.getElementById("run-list");
for (const [name, report] of Object.entries(parsed("details"))) {
  const entry = document.createElement("details");
  entry.innerHTML = "<summary></summary>";
  entry.firstChild.textContent = name;
  entry.addEventListener("toggle", () => {
    if (entry.childElementCount > 1) return;
    const text = document.createElement("pre");
    text.textContent = JSON.stringify(report, null, 2);
    entry.append(text);
  });
  list.append(entry);
}

for (const input of document.querySelectorAll("input[data-filter]")) {
  const place = document.getElementById(input.dataset.filter);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    for (const row of place.tBodies ? place.tBodies[0].rows : place.children) {
      const text = (row.cells ? row.cells[0] : row.firstChild).textContent.toLowerCase();
      row.hidden = words.length > 0 && !words.some((word) => text.includes(word));
    }
  });
}
// A link to a strategy opens it.
const open = () => { const place = document.getElementById(location.hash.slice(1)); if (place) place.open = true; };
addEventListener("hashchange", open);
open();
document.body.dataset.ready = "yes";
