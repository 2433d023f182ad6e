"use strict";
const parsed = (id) => JSON.parse(document.getElementById(id).textContent);

// Vega-Lite cannot place labels, but Vega can; report/charts.py does the same for SVG files.
const anchors = parsed("anchors");
function placeLabels(marks) {
  for (const mark of marks) {
    const style = [mark.style].flat().find((name) => name in anchors);
    if (style) {
      const avoidMarks = marks.filter((other) => other.type === "symbol").map((other) => other.name);
      const size = { signal: "[width, height]" };
      mark.transform = [{ type: "label", size, anchor: anchors[style], offset: [7], avoidMarks }];
      mark.encode.update.fill = { value: "currentColor" };
    }
    placeLabels(mark.marks || []);
  }
}

// The page's color of text, on a dark screen and on paper too.
const axis = { labelColor: "currentColor", titleColor: "currentColor" };
const lines = { domainColor: "currentColor", tickColor: "currentColor", gridColor: "currentColor" };
const config = {
  background: "transparent",
  font: "system-ui, sans-serif",
  axis: { ...axis, ...lines, domainOpacity: 0.4, tickOpacity: 0.4, gridOpacity: 0.15 },
  header: axis,
  legend: axis,
  view: { stroke: "currentColor", strokeOpacity: 0.15 },
};
const specs = parsed("specs");
const drawn = new Set();
function draw(place) {
  drawn.add(place);
  const spec = specs[place.dataset.spec];
  const fit = { width: place.clientWidth, autosize: { type: "fit-x", contains: "padding" } };
  // Charts with several panels keep their width and scroll.
  const size = spec.facet ? {} : fit;
  const patch = (vega) => {
    placeLabels(vega.marks);
    return vega;
  };
  const many = Object.values(spec.datasets).flat().length > 5000;
  const options = { renderer: many ? "canvas" : "svg", actions: false, config, patch };
  // Once more, as the columns of a legend follow from the width.
  return vegaEmbed(place, { ...spec, ...size }, options)
    .then(({ view }) => view.resize().runAsync()).then(() => { place.dataset.drawn = "yes"; });
}
// Charts are drawn when they come into view; the others, which may be printed, when there is time.
const inView = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (isIntersecting) {
      inView.unobserve(target);
      if (!drawn.has(target)) draw(target);
    }
  }
}, { rootMargin: "400px" });
const places = [...document.querySelectorAll(".chart")];
places.forEach((place) => inView.observe(place));
const shown = places.filter((place) => !place.closest("details"));
function drawNext() {
  const place = shown.find((each) => !drawn.has(each));
  if (place) draw(place).then(() => setTimeout(drawNext, 50));
}
setTimeout(drawNext, 1000);
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) drawn.forEach(draw);
  width = innerWidth;
});
addEventListener("beforeprint", () => { const notes = document.getElementById("notes"); if (notes) notes.open = true; });

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
  const heads = [...table.tHead.querySelectorAll("[aria-sort]")];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    sortBy(table, column, down);
  }));
}

// A link to a strategy or a note opens what it is in.
const open = () => {
  const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = place && place.closest("details");
  if (folded) folded.open = true;
};
addEventListener("hashchange", open);
open();
document.body.dataset.ready = "yes";
