const byId = (id) => document.getElementById(id);
const figures = JSON.parse(byId("data-figures").textContent);
const data = JSON.parse(byId("data-items").textContent);
const PALETTE = ["#2f7ebc", "#d9690f", "#12936b", "#b05fa0", "#b58900", "#49a5e0", "#7d8590", "#c0392b"];
const EVENTS = ["#b05fa0", "#c0392b", "#49a5e0", "#12936b"]; // with four signs: sixteen events that are told apart
const CONFIG = {
  responsive: true,
  displaylogo: false,
  displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false, // else it would cover titles all the time
  modeBarButtonsToRemove: ["lasso2d", "select2d"],
};

// -- figures: drawn when they come into view, in the colours of the page ----------------------------------------------

const drawn = new Map(); // element → [traces, layout]

function colours() {
  const style = getComputedStyle(document.documentElement);
  return { ink: style.getPropertyValue("--ink").trim(), line: style.getPropertyValue("--line").trim(), raised: style.getPropertyValue("--raised").trim() };
}

function dressed(layout, element) {
  const { ink, line, raised } = colours();
  const made = structuredClone(layout);
  const narrow = element.clientWidth < 520;
  Object.assign(made, { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true });
  made.font = { family: "system-ui, sans-serif", size: narrow ? 11 : 13, color: ink };
  made.hoverlabel = { bgcolor: raised, bordercolor: line, font: { color: ink } };
  made.margin = { l: narrow ? 44 : 60, r: 12, t: 36, b: 48 };
  for (const name of Object.keys(made)) {
    if (/^[xy]axis/.test(name)) Object.assign(made[name], { gridcolor: line, linecolor: line, zeroline: false, automargin: true });
  }
  for (const note of made.annotations || []) note.font = Object.assign({}, note.font, { color: ink });
  return made;
}

function draw(element, traces, layout) {
  drawn.set(element, [traces, layout]);
  return Plotly.react(element, traces, dressed(layout, element), CONFIG);
}

function redraw() {
  for (const [element, [traces, layout]] of drawn) Plotly.react(element, traces, dressed(layout, element), CONFIG);
}

const waiting = new Set(document.querySelectorAll(".plot[data-figure]"));
function drawWaiting(element) {
  if (!waiting.delete(element)) return;
  const { data: traces, layout } = figures[Number(element.dataset.figure)];
  draw(element, traces, layout);
}
const watcher = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawWaiting(entry.target)),
  { rootMargin: "400px" },
);
waiting.forEach((element) => watcher.observe(element));

// -- light, dark, paper -----------------------------------------------------------------------------------------------

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
byId("theme").addEventListener("click", () => {
  const now = root.dataset.theme || (dark.matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  redraw();
});
dark.addEventListener("change", redraw);
let before;
addEventListener("beforeprint", () => {
  before = root.dataset.theme;
  root.dataset.theme = "light";
  root.dataset.paper = "";  // so narrow that figures are drawn to fit
  [...waiting].forEach(drawWaiting);
  redraw();
});
addEventListener("afterprint", () => {
  if (before) root.dataset.theme = before;
  else delete root.dataset.theme;
  delete root.dataset.paper;
  redraw();
});

// -- tables: a button in each heading sorts ---------------------------------------------------------------------------

function sortBy(heading) {
  const table = heading.closest("table");
  const place = [...heading.parentNode.children].indexOf(heading);
  const rises = heading.getAttribute("aria-sort") !== "ascending";
  const key = (row) => {
    const cell = row.children[place];
    return cell.dataset.key === undefined ? cell.textContent.trim() : Number(cell.dataset.key);
  };
  const isNumber = (value) => typeof value === "number" && !Number.isNaN(value);
  const order = (one, other) => {
    const [a, b] = [key(one), key(other)];
    if (isNumber(a) && isNumber(b)) return rises ? a - b : b - a;
    if (isNumber(a) !== isNumber(b)) return isNumber(a) ? -1 : 1; // what has no number stays below
    return rises ? String(a).localeCompare(String(b)) : String(b).localeCompare(String(a));
  };
  table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
  for (const other of heading.parentNode.children) other.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", rises ? "ascending" : "descending");
}
for (const heading of document.querySelectorAll("th")) {
  heading.firstElementChild.addEventListener("click", () => sortBy(heading));
  const cells = [...heading.closest("table").tBodies[0].rows].map((row) => row.children[[...heading.parentNode.children].indexOf(heading)]);
  if (cells.length && cells.every((cell) => cell.classList.contains("number") || cell.textContent.trim() === "-")) heading.classList.add("number");
}

// -- what figures of items share: dates by their place, names from data as text ---------------------------------------

const date = (place) => data.dates[place];
const escapes = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
const plain = (text) => {
  const cut = text.length > 60 ? `${text.slice(0, 39)}…${text.slice(-20)}` : text;
  return `\u2068${cut.replace(/[&<>]/g, (sign) => escapes[sign])}\u2069`;
};
const number = (value) => {
  if (value === null || value === undefined) return "unknown";
  return Math.abs(value) >= 1e9 ? value.toExponential(2) : value.toLocaleString("en", { maximumSignificantDigits: 4 });
};
const levelName = (level) => `P${Number((level * 100).toPrecision(10))}`;
const line = (colour, width, dash) => ({ color: PALETTE[colour % PALETTE.length], width, dash });

function band(x, low, high, name, colour) {
  const fillcolor = PALETTE[colour % PALETTE.length];
  return { x: [...x, ...[...x].reverse()], y: [...low, ...[...high].reverse()], fill: "toself", fillcolor, opacity: 0.2, line: { width: 0 }, mode: "lines", hoverinfo: "skip", name };
}

function marks(places, name, symbol, colour) {
  return { x: places.map(date), y: places.map(() => 0), name: plain(name), mode: "markers", marker: { symbol, size: 9, color: colour }, hovertemplate: "%{x}<extra>%{fullData.name}</extra>", cliponaxis: false };
}

function specialDates(promotions, first, last) {
  const within = (places) => places.filter((place) => place >= first && place <= last);
  const found = promotions.map(([flag, places]) => marks(within(places), data.flags[flag], ["triangle-up", "triangle-down", "diamond"][flag % 3], "#b58900"));
  data.events.forEach(([name, places], i) => found.push(marks(within(places), name, ["star", "circle", "square", "cross"][i % 4], EVENTS[(i >> 2) % 4])));
  return found.filter((trace) => trace.x.length);
}
