
// -- items: an index of all, the numbers of each in chunks that are read when they are needed ---------------------------

const PER_CHUNK = 250, PER_VIEW = 15, RECENT = 4; // RECENT: horizons
async function itemAt(place) {
  const [cutoff, [from, ...sold], [first, ...fan], promotions, numbers, before, totals] = (await chunk(1 + Math.floor(place / PER_CHUNK)))[place % PER_CHUNK];
  return { cutoff, sold: sold.map((value, i) => [from + i, value]), first, fan, promotions, numbers, totals, before: before ? before.slice(1).map((value, i) => [before[0] + i, value]) : [] };
}

const middle = data.levels.reduce((best, level, i) => (Math.abs(level - 0.5) < Math.abs(data.levels[best] - 0.5) ? i : best), 0);
const ends = `${levelName(data.levels[0])} to ${levelName(data.levels.at(-1))}`;
const shownNumber = (value) => (value === null || value === undefined ? "-" : number(value));
const element = (name, text, parent) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
};

// -- the list ---------------------------------------------------------------------------------------------------------

const state = { item: null, matches: [], shown: PER_VIEW, sort: "total", rises: false, index: null };

function columns() {
  const index = state.index;
  const found = [["ids", "item"], ["total", `${levelName(data.levels[middle])}s, next ${data.steps}`], ["before", `sold, last ${data.steps}`]];
  if (index.width) found.push(["width", ends]);
  if (index.change) found.push(["change", `changed since ${data.previous}`]);
  return found;
}

function ordered(places) {
  const values = state.index[state.sort];
  const sign = state.rises ? 1 : -1;
  const has = (place) => values[place] !== null;
  if (state.sort === "ids") return places.sort((a, b) => sign * values[a].localeCompare(values[b]));
  return places.sort((a, b) => (has(a) && has(b) ? sign * (values[a] - values[b]) : has(b) - has(a)) || a - b);
}

function choose() {
  const wanted = byId("search").value.trim().toLowerCase();
  const chosen = [...document.querySelectorAll("#groups select")].map((select) => [select.dataset.group, select.value]).filter(([, value]) => value !== "");
  const reason = byId("reason").value;
  const places = reason === "" ? state.index.ids.map((_, i) => i) : state.index.reasons[Number(reason)][1].slice();
  const fits = (place) => state.lower[place].includes(wanted) && chosen.every(([name, value]) => state.index.groups[name][1][place] === Number(value));
  state.matches = ordered(places.filter(fits));
  state.shown = PER_VIEW;
  byId("found").textContent = `${state.matches.length.toLocaleString("en")} of ${state.index.ids.length.toLocaleString("en")} items match.`;
  list();
  if (state.matches.length && !state.matches.includes(state.item)) show(state.matches[0]);
  else if (!state.matches.length) nothing();
}

function list() {
  const body = byId("list").tBodies[0];
  body.replaceChildren();
  for (const place of state.matches.slice(0, state.shown)) {
    const row = element("tr", undefined, body);
    columns().forEach(([key], i) => {
      const cell = element("td", undefined, row);
      if (i) {
        cell.className = "number";
        cell.textContent = shownNumber(state.index[key][place]);
        return;
      }
      const button = element("button", undefined, cell);
      button.type = "button";
      button.className = "pick";
      element("bdi", state.index.ids[place], button);
      button.addEventListener("click", () => { show(place); byId("item-title").scrollIntoView({ block: "start" }); });
    });
  }
  byId("more").hidden = state.matches.length <= state.shown;
}

function headings() {
  const row = byId("list").tHead.rows[0];
  row.replaceChildren();
  columns().forEach(([key, name], i) => {
    const heading = element("th", undefined, row);
    heading.scope = "col";
    if (i) heading.className = "number";
    heading.setAttribute("aria-sort", key !== state.sort ? "none" : state.rises ? "ascending" : "descending");
    const button = element("button", name, heading);
    button.type = "button";
    button.addEventListener("click", () => {
      state.rises = state.sort === key ? !state.rises : key === "ids";
      state.sort = key;
      headings();
      choose();
      byId("list").tHead.rows[0].children[i].firstElementChild.focus();
    });
  });
}

function option(select, value, text) {
  element("option", text, select).value = value;
}

function filters() {
  option(byId("reason"), "", "all items");
  state.index.reasons.forEach(([name, places], i) => option(byId("reason"), String(i), `${name} (${places.length.toLocaleString("en")})`));
  for (const [name, [texts]] of Object.entries(state.index.groups)) {
    const paragraph = element("p", undefined, byId("groups"));
    const label = element("label", undefined, paragraph);
    element("bdi", name, label);
    const select = element("select", undefined, label);
    select.dataset.group = name;
    option(select, "", "all");
    texts.forEach((text, i) => option(select, String(i), `\u2068${text}\u2069`));
    select.addEventListener("change", choose);
  }
}

// -- one item ---------------------------------------------------------------------------------------------------------

function nothing() {
  state.item = null;
  byId("item-name").textContent = "No item matches.";
  byId("item-why").textContent = "";
  byId("fan-beyond").textContent = "";
  clear(byId("fan"));
  for (const part of ["by-date", "by-span"]) for (const rows of [byId(part).tHead.rows[0], byId(part).tBodies[0]]) rows.replaceChildren();
}

async function show(place) {
  state.item = place;
  const one = await itemAt(place);
  if (state.item !== place) return; // another one was chosen meanwhile
  byId("item-name").textContent = state.index.ids[place];
  const reasons = state.index.reasons.filter(([, places]) => places.includes(place)).map(([name]) => name);
  const groups = Object.entries(state.index.groups).map(([name, [texts, places]]) => `${name}: ${texts[places[place]]}`);
  byId("item-why").textContent = [...groups, ...reasons].join(" · ");
  drawFan(one);
  table(one);
  tableOfTotals(one);
}

// Values far beyond all that was sold would flatten everything else: the axis ends there, and a note tells of them.
function rangeOf(one, first) {
  const sold = one.sold.filter(([place]) => place >= first).map(([, value]) => value).filter((value) => value !== null);
  const told = [...one.fan.flat(), ...one.before.map(([, value]) => value)].filter((value) => value !== null);
  const largest = Math.max(0, ...one.sold.map(([, value]) => Math.abs(value ?? 0)));
  const beyond = largest ? told.filter((value) => Math.abs(value) > 10 * largest) : [];
  byId("fan-beyond").textContent = beyond.length ? `${beyond.length} of ${told.length} values lie beyond the axis: more than ten times the largest value ever sold.` : "";
  if (!beyond.length) return undefined;
  const fine = [...sold, ...told.filter((value) => !beyond.includes(value)), 0];
  return [Math.min(...fine), 1.08 * Math.max(...fine, largest)];
}

function drawFan(one) {
  const targets = one.fan[0].map((_, i) => one.first + i);
  const x = targets.map(date);
  const last = Math.max(targets.at(-1), data.dates.length - 1);
  const all = Math.min(one.sold.length ? one.sold[0][0] : one.cutoff, one.cutoff);
  const first = byId("recent").checked ? Math.max(all, one.cutoff - RECENT * targets.length) : all;
  const traces = [];
  for (let i = 0; i < Math.floor(one.fan.length / 2); i += 1) {
    const j = one.fan.length - 1 - i;
    traces.push(band(x, one.fan[i], one.fan[j], `${levelName(data.levels[i])} to ${levelName(data.levels[j])}`, 0));
  }
  one.fan.forEach((y, i) => traces.push({ x, y, hovertemplate: "%{x}: %{y:.4g}", mode: i === middle ? "lines+markers" : "lines", name: levelName(data.levels[i]), line: line(0, i === middle ? 2.5 : 1, i === middle ? "solid" : "dot"), marker: { size: 4 } }));
  const sold = one.sold.filter(([place]) => place >= first);
  traces.push({ x: sold.map(([place]) => date(place)), y: sold.map(([, value]) => value), name: "sold", mode: "lines+markers", line: { color: "#7d8590", width: 1.5 }, marker: { size: 4 } });
  const before = one.before.filter(([place]) => place >= first);
  if (before.length) traces.push({ x: before.map(([place]) => date(place)), y: before.map(([, value]) => value), name: `forecast of ${data.previous}`, mode: "lines", line: line(1, 2, "dash") });
  traces.push(...specialDates(one.promotions, first, last, targets));
  const now = { type: "line", x0: date(one.cutoff), x1: date(one.cutoff), yref: "paper", y0: 0, y1: 1, line: { color: "#7d8590", dash: "dash", width: 1 } };
  const layout = { height: 440, showlegend: true, legend: { orientation: "h", y: -0.15 }, xaxis: { range: [date(first), date(last)] }, yaxis: { rangemode: "tozero", range: rangeOf(one, first) }, shapes: [now] };
  withAxis(traces, layout, [...one.fan.flat(), ...before.map(([, value]) => value)]);
  withNumbers(one.numbers, last, traces, layout);
  const named = traces.filter((trace) => trace.showlegend !== false).length;
  if (byId("fan").clientWidth < 520) layout.height += 19 * named; // there the legend is a column
  draw(byId("fan"), traces, layout);
  byId("fan").setAttribute("aria-label", `History of ${state.index.ids[state.item]} and its forecast made at ${date(one.cutoff)}`);
}

function table(one) {
  const head = byId("by-date").tHead.rows[0], body = byId("by-date").tBodies[0], before = new Map(one.before);
  const names = ["date", ...data.levels.map(levelName), ...(data.previous ? [`${levelName(data.levels[middle])} of ${data.previous}`] : []), "special"];
  head.replaceChildren();
  body.replaceChildren();
  names.forEach((name, i) => {
    const heading = element("th", name, head);
    heading.scope = "col";
    if (i && i < names.length - 1) heading.className = "number";
  });
  one.fan[0].forEach((_, i) => {
    const place = one.first + i, row = element("tr", undefined, body);
    element("td", date(place), row);
    const numbers = [...one.fan.map((level) => level[i]), ...(data.previous ? [before.get(place)] : [])];
    for (const value of numbers) element("td", shownNumber(value), row).className = "number";
    const special = [...one.promotions.filter(([, places]) => places.includes(place)).map(([flag]) => data.flags[flag]), ...data.events.filter(([, places]) => places.includes(place)).map(([name]) => name)];
    element("bdi", special.join(", "), element("td", undefined, row));
  });
}

function tableOfTotals(one) {
  const head = byId("by-span").tHead.rows[0], body = byId("by-span").tBodies[0];
  head.replaceChildren();
  body.replaceChildren();
  byId("totals-of-item").hidden = data.spans.length === 0;
  ["total over", ...data.levels.map(levelName)].forEach((name, i) => {
    const heading = element("th", name, head);
    heading.scope = "col";
    if (i) heading.className = "number";
  });
  data.spans.forEach((name, i) => {
    const row = element("tr", undefined, body);
    element("td", name, row);
    for (const value of one.totals[i]) element("td", shownNumber(value), row).className = "number";
  });
}

// -- download ---------------------------------------------------------------------------------------------------------

function quotedCell(value) { // a text that a spreadsheet would take for a formula gets an apostrophe
  let text = String(value ?? "");
  if (typeof value === "string" && /^(?:[=+@\t\r]|-(?![\d.]+$))/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

async function csv(places) {
  const lines = [data.columns.map(quotedCell).join(",")];
  for (const place of places) {
    const one = await itemAt(place);
    const id = quotedCell(state.index.ids[place]);
    one.fan[0].forEach((_, i) => lines.push([id, date(one.cutoff), date(one.first + i), ...one.fan.map((level) => level[i] ?? "")].join(",")));
  }
  return `${lines.join("\r\n")}\r\n`;
}

async function download() {
  byId("downloaded").textContent = "Preparing …";
  const places = state.matches.slice().sort((a, b) => a - b);
  const url = URL.createObjectURL(new Blob([await csv(places)], { type: "text/csv" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = "forecast.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
  byId("downloaded").textContent = `forecast.csv holds ${places.length.toLocaleString("en")} items, numbers to four digits.`;
}

// -- start ------------------------------------------------------------------------------------------------------------

async function start() {
  if (!canUnpack()) return;
  state.index = await chunk(0);
  state.lower = state.index.ids.map((id) => id.toLowerCase());
  filters();
  headings();
  byId("search").addEventListener("input", choose);
  byId("reason").addEventListener("change", choose);
  byId("more").addEventListener("click", () => { state.shown += 10 * PER_VIEW; list(); });
  byId("download").addEventListener("click", download);
  byId("recent").checked = innerWidth < 520;
  for (const id of ["recent", "fitted", "logarithmic"]) byId(id).addEventListener("change", () => state.item !== null && show(state.item));
  for (const button of document.querySelectorAll("#first .pick")) {
    button.addEventListener("click", () => {
      byId("search").value = "";
      byId("reason").value = "";
      document.querySelectorAll("#groups select").forEach((select) => { select.value = ""; });
      state.item = Number(button.dataset.item);
      choose();
      show(state.item);
      byId("item-title").scrollIntoView();
    });
  }
  choose();
}

start();
