const byId = (id) => document.getElementById(id);
const figures = JSON.parse(byId("data-figures").textContent);
const data = JSON.parse(byId("data-items").textContent);
const PALETTE = ["#2f7ebc", "#d9690f", "#12936b", "#b05fa0", "#b58900", "#49a5e0", "#7d8590", "#c0392b"];
const EVENTS = ["#b05fa0", "#c0392b", "#49a5e0", "#12936b"]; // with four signs: sixteen events that are told apart
const hovers = matchMedia("(hover: hover)").matches;
const CONFIG = {
  responsive: true,
  displaylogo: false,
  displayModeBar: hovers ? "hover" : false, // else it would cover titles all the time
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
  if (!hovers) made.dragmode = false; // a finger that moves over a chart moves the page
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
  return { x: places.map(date), y: places.map(() => 0), name: plain(name), mode: "markers", marker: { symbol, size: places.length > 60 ? 6 : 9, color: colour }, hovertemplate: "%{x}<extra>%{fullData.name}</extra>", cliponaxis: false };
}

// Promotions and events from one date to another; the legend has those of the dates that are forecast.
function specialDates(promotions, first, last, forecast) {
  const within = (places) => places.filter((place) => place >= first && place <= last);
  const found = promotions.map(([flag, places]) => [within(places), data.flags[flag], ["triangle-up", "triangle-down", "diamond"][flag % 3], "#b58900"]);
  data.events.forEach(([name, places], i) => found.push([within(places), name, ["star", "circle", "square", "cross"][i % 4], EVENTS[(i >> 2) % 4]]));
  return found.filter(([places]) => places.length).map(([places, ...look]) => Object.assign(marks(places, ...look), { showlegend: !forecast || places.some((place) => forecast.includes(place)) }));
}

// -- prices and other numbers, in panels below the sales; those of one size share a panel -------------------------------

function steps(changes, last) { // [place, value, place, value …] → x and y of a line in steps
  const [x, y] = [[], []];
  for (let i = 0; i < changes.length; i += 2) { x.push(date(changes[i])); y.push(changes[i + 1]); }
  if (y.length && y.at(-1) !== null) { x.push(date(last)); y.push(y.at(-1)); }
  return { x, y };
}

function withNumbers(numbers, last, traces, layout) {
  const panels = [];
  for (const [i, ...changes] of numbers.filter(([, ...told]) => told.length)) {
    const one = { i, size: Math.max(...changes.filter((_, at) => at % 2).map(Math.abs)), ...steps(changes, last) };
    const like = panels.find(([other]) => other.size < 3 * one.size && one.size < 3 * other.size);
    if (like) like.push(one);
    else panels.push([one]);
  }
  const each = 0.24 / Math.max(1, panels.length ** 0.5); // of the height, with the gap above it
  panels.forEach((panel, at) => {
    const axis = `y${at + 2}`;
    for (const { i, x, y } of panel) traces.push({ x, y, yaxis: axis, name: plain(data.numbers[i]), mode: "lines", line: Object.assign(line(2 + 2 * i, 1.5, "solid"), { shape: "hv" }), hovertemplate: "%{x}: %{y:.4g}" });
    const foot = (panels.length - 1 - at) * each;
    layout[`yaxis${at + 2}`] = { domain: [foot, foot + 0.7 * each], nticks: 4, title: { text: panel.length === 1 ? plain(data.numbers[panel[0].i]).slice(0, 24) : "", font: { size: 11 } } };
  });
  layout.yaxis.domain = [panels.length * each + (panels.length ? 0.04 : 0), 1];
  layout.xaxis.anchor = panels.length ? `y${panels.length + 1}` : "y";
  layout.height += 80 * panels.length;
}

// -- the axis of sales: from 0, fitted to the forecast, or logarithmic ---------------------------------------------------

const isOn = (id) => Boolean(byId(id)?.checked);
const known = (values) => values.filter((value) => value !== null && value !== undefined);

function withAxis(traces, layout, told) { // told: what was forecast and what became of it
  const own = traces.filter((trace) => !trace.yaxis);
  if (isOn("fitted") && known(told).length) layout.yaxis.range = [Math.min(0, ...known(told)), 1.08 * Math.max(...known(told), 0) || 1];
  if (!isOn("logarithmic")) return;
  const above = known(own.flatMap((trace) => trace.y)).filter((value) => value > 0);
  if (!above.length) return;
  const top = layout.yaxis.range ? layout.yaxis.range[1] : 1.2 * above.reduce((one, other) => Math.max(one, other));
  const foot = Math.max(above.reduce((one, other) => Math.min(one, other)) / 2, top / 1e5);
  for (const trace of own) { // what is 0 or less stands at the foot, and says what it is
    if (trace.hovertemplate) Object.assign(trace, { customdata: trace.customdata || trace.y, hovertemplate: trace.hovertemplate.replace("%{y:", "%{customdata:") });
    trace.y = trace.y.map((value) => (value === null ? null : Math.max(value, foot)));
  }
  for (const shape of (layout.shapes || []).filter((one) => one.yref !== "paper")) shape.y0 = shape.y1 = Math.max(shape.y0, foot);
  for (const note of layout.annotations || []) note.y = Math.log10(Math.max(note.y, foot));
  layout.yaxis = Object.assign(layout.yaxis, { type: "log", rangemode: "normal", range: [Math.log10(foot), Math.log10(top)], dtick: top / foot > 30 ? 1 : undefined });
}

// -- compressed data, read when they are needed -------------------------------------------------------------------------

const packedChunks = [...document.querySelectorAll("script.chunk")]; // the index, then the items
const chunks = new Map();

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function chunk(place) {
  if (!chunks.has(place)) chunks.set(place, unpacked(packedChunks[place].textContent));
  return chunks.get(place);
}

function canUnpack() {
  if (typeof DecompressionStream !== "undefined") return true;
  byId("found").textContent = "This browser cannot read the items (it has no DecompressionStream). Open the page in a newer one.";
  return false;
}

function clear(plot) {
  drawn.delete(plot);
  Plotly.purge(plot);
}
