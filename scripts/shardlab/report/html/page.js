"use strict";
const parsed = (id) => JSON.parse(document.getElementById(id).textContent);

// Charts are drawn when they come into view, and again when the colours change.
const specs = parsed("specs");
const dark = matchMedia("(prefers-color-scheme: dark)");
const drawn = new Set();
function draw(place) {
  drawn.add(place);
  const spec = specs[place.dataset.spec];
  // Panels under each other are as wide as they are.
  const fit = { width: place.clientWidth, autosize: { type: "fit-x", contains: "padding" } };
  const size = spec.vconcat || spec.facet ? {} : fit;
  const many = Object.values(spec.datasets).flat().length > 5000;
  const theme = { ...(dark.matches ? { theme: "dark" } : {}), renderer: many ? "canvas" : "svg", actions: false };
  const config = { background: "transparent", font: "system-ui, sans-serif" };
  vegaEmbed(place, { ...spec, ...size }, { ...theme, config }).then(() => { place.dataset.drawn = "yes"; });
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

// Tables: a click on a column sorts by it, numbers as numbers; empty cells stay at the end.
function sortBy(table, column, down) {
  const value = (row) => row.cells[column].textContent.trim();
  const rows = [...table.tBodies[0].rows];
  rows.sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (!a || !b) return Boolean(b) - Boolean(a);
    const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
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

// What a run is made of is put into the page when it is opened: a thousand of them cost nothing before.
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
