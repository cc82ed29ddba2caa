if (!data || !byId("explorer")) return;

// -- the explorer -----------------------------------------------------------------------------------------------------

const state = { item: null, one: null, index: null, model: data.first, cutoff: 0, target: null }; // item: its place; one: its numbers
const percent = (thousandths) => `${(thousandths / 10).toFixed(thousandths < 100 ? 1 : 0)} %`;
const middle = data.levels.includes(0.5) ? data.levels.indexOf(0.5) : data.levels.length - 1;
const HISTORY = 110, RECENT = 4; // steps; horizons
const item = () => state.one;
const nameOf = () => state.index.ids[state.item];

// Values beyond all reason are drawn at the edge of an axis that goes by the others, marked, and told below the figure.
function bounded(lists, others, note) {
  const known = lists.flat().filter((value) => value !== null);
  const beyond = item().limit ? known.filter((value) => Math.abs(value) > item().limit) : [];
  byId(note).textContent = "";
  if (!beyond.length) return { clip: (values) => values, marks: () => [], range: undefined };
  const fine = [...known, ...others].filter((value) => value !== null && Math.abs(value) <= item().limit);
  const [top, bottom] = [Math.max(0, ...fine), Math.min(0, ...fine)];
  const room = 0.08 * (top - bottom || item().limit);
  const isBeyond = (value) => value !== null && Math.abs(value) > item().limit;
  const edge = (value) => (value > 0 ? top + room : bottom - room);
  const worst = beyond.reduce((one, other) => (Math.abs(other) > Math.abs(one) ? other : one));
  byId(note).textContent = `${beyond.length} of ${known.length} values lie beyond the axis, up to ${number(worst)}: more than ten times the largest value ever sold. Triangles mark them at its edge.`;
  return {
    clip: (values) => values.map((value) => (isBeyond(value) ? edge(value) : value)),
    marks: (x, values, name, colour) => {
      const places = values.map((_, i) => i).filter((i) => isBeyond(values[i]));
      if (!places.length) return [];
      return [{ x: places.map((i) => x[i]), y: places.map((i) => edge(values[i])), mode: "markers", name, showlegend: false, marker: { color: PALETTE[colour % PALETTE.length], size: 11, symbol: places.map((i) => (values[i] > 0 ? "triangle-up" : "triangle-down")) }, text: places.map((i) => `${name}: ${number(values[i])}`), hovertemplate: "%{x}: %{text}<extra></extra>" }];
    },
    range: [beyond.some((value) => value < 0) ? bottom - 2 * room : bottom, top + 2 * room],
  };
}

function drawFan() {
  const { history: [places, values], cutoffs, targets, quantiles } = item();
  const at = state.cutoff;
  const x = targets[at].map(date);
  const told = quantiles[state.model][at];
  const last = Math.min(targets[at].at(-1) + 2, data.dates.length - 1);
  const shown = isOn("recent") ? RECENT * data.horizon : HISTORY;
  const first = Math.max(places[0] ?? cutoffs[at], cutoffs[at] - shown);
  const seen = places.map((place, i) => [place, values[i]]).filter(([place]) => place >= first && place <= last);
  const bounds = bounded(told, seen.map(([, value]) => value), "fan-beyond");
  const fan = told.map(bounds.clip);
  const traces = [];
  for (let i = 0; i < Math.floor(fan.length / 2); i += 1) {
    const j = fan.length - 1 - i;
    traces.push(band(x, fan[i], fan[j], `${levelName(data.levels[i])} to ${levelName(data.levels[j])}`, state.model));
  }
  fan.forEach((y, i) => traces.push({ x, y, customdata: told[i], hovertemplate: "%{x}: %{customdata:.4g}", mode: "lines", name: levelName(data.levels[i]), line: line(state.model, i === middle ? 2.5 : 1, i === middle ? "solid" : "dot") }));
  traces.push({ x: seen.map(([place]) => date(place)), y: seen.map(([, value]) => value), hovertemplate: "%{x}: %{y:.4g}", name: "actual", mode: "lines+markers", line: { color: "#7d8590", width: 1.5 }, marker: { size: 4 } });
  told.forEach((y, i) => traces.push(...bounds.marks(x, y, levelName(data.levels[i]), state.model)));
  traces.push(...specialDates(item().promotions, first, last, targets[at]));
  const now = { type: "line", x0: date(cutoffs[at]), x1: date(cutoffs[at]), yref: "paper", y0: 0, y1: 1, line: { color: "#7d8590", dash: "dash", width: 1 } };
  const layout = { height: 420, showlegend: true, legend: { orientation: "h", y: -0.2 }, xaxis: { range: [date(first), date(last)] }, yaxis: { rangemode: "tozero", range: bounds.range }, shapes: [now] };
  withAxis(traces, layout, [...fan.flat(), ...seen.filter(([place]) => targets[at].includes(place)).map(([, value]) => value)]);
  withNumbers(item().numbers, last, traces, layout);
  if (byId("fan").clientWidth < 520) layout.height += 19 * traces.filter((trace) => trace.showlegend !== false).length; // there the legend is a column
  draw(byId("fan"), traces, layout);
  byId("fan").setAttribute("aria-label", `History of ${nameOf()} and its forecast made at ${date(cutoffs[at])}`);
  byId("cutoff-date").textContent = date(cutoffs[at]);
  byId("cutoff").setAttribute("aria-valuetext", date(cutoffs[at]));
}

function targetsOfItem() {
  return [...new Set(item().targets.flat())].sort((a, b) => a - b);
}

function forecastsOf(target, model) {
  const found = [];
  item().targets.forEach((places, at) => {
    const place = places.indexOf(target);
    if (place >= 0) found.push([item().cutoffs[at], item().quantiles[model][at].map((values) => values[place])]);
  });
  return found;
}

function actualOf(target) {
  const place = item().history[0].indexOf(target);
  return place < 0 ? null : item().history[1][place];
}

function drawEvolution() {
  const target = targetsOfItem()[state.target];
  const own = forecastsOf(target, state.model);
  const medians = data.models.map((_, i) => forecastsOf(target, i).map(([, q]) => q[middle]));
  const [lowest, highest] = [own.map(([, q]) => q[0]), own.map(([, q]) => q.at(-1))];
  const bounds = bounded([...medians, lowest, highest], [actualOf(target)], "evolution-beyond");
  const traces = [];
  if (data.levels.length > 1) traces.push(band(own.map(([cutoff]) => date(cutoff)), bounds.clip(lowest), bounds.clip(highest), `${levelName(data.levels[0])} to ${levelName(data.levels.at(-1))}`, state.model));
  data.models.forEach((name, i) => {
    const x = forecastsOf(target, i).map(([cutoff]) => date(cutoff));
    traces.push(...bounds.marks(x, medians[i], `${plain(name)}, ${levelName(data.levels[middle])}`, i));
    traces.push({ x, y: bounds.clip(medians[i]), customdata: medians[i], hovertemplate: "%{x}: %{customdata:.4g}", name: `${plain(name)}, ${levelName(data.levels[middle])}`, mode: "lines+markers", marker: { symbol: i % 8 }, line: Object.assign(line(i, i === state.model ? 2.5 : 1.5, i === state.model ? "solid" : "dot"), { shape: "hv" }) });
  });
  for (const [values, level] of data.levels.length > 1 ? [[lowest, data.levels[0]], [highest, data.levels.at(-1)]] : []) {
    traces.push(...bounds.marks(own.map(([cutoff]) => date(cutoff)), values, levelName(level), state.model));
  }
  const actual = actualOf(target);
  const shapes = actual === null ? [] : [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: actual, y1: actual, line: { color: "#7d8590", dash: "dash", width: 2 } }];
  const annotations = actual === null ? [] : [{ xref: "paper", x: 1, y: actual, text: `actual ${number(actual)}`, showarrow: false, xanchor: "right", yanchor: "bottom" }];
  const layout = { height: 380, showlegend: true, legend: { orientation: "h", y: -0.25 }, xaxis: { title: { text: "forecast made at" } }, yaxis: { rangemode: "tozero", range: bounds.range }, shapes, annotations };
  withAxis(traces, layout, []);
  draw(byId("evolution"), traces, layout);
  byId("evolution").setAttribute("aria-label", `How the forecast of ${nameOf()} for ${date(target)} evolved`);
  byId("target-date").textContent = `${date(target)}${actual === null ? ", not yet known" : `, ${number(actual)} sold`}`;
  byId("target").setAttribute("aria-valuetext", date(target));
}

const pairs = (flat) => Array.from({ length: (flat || []).length / 2 }, (_, i) => [flat[2 * i], flat[2 * i + 1]]);

function namesAt(place) {
  const names = data.events.filter(([, places]) => places.includes(place)).map(([name]) => name);
  for (const [flag, places] of item().promotions) if (places.includes(place)) names.push(data.flags[flag]);
  return names.length ? ` (${names.join(", ")})` : "";
}

function drawWhy() {
  const weights = ((item().attention || {})[state.model] || {})[item().cutoffs[state.cutoff]];
  byId("why").hidden = !weights;
  byId("no-why").hidden = Boolean(weights) || !data.explains;
  if (!weights) return;
  const horizons = Object.keys(weights.history || {}).map(Number).sort((a, b) => a - b);
  const seen = horizons.flatMap((horizon) => pairs(weights.history[horizon]).map(([place]) => place));
  const [first, last] = [Math.min(...seen), item().cutoffs[state.cutoff]];
  const places = Array.from({ length: last - first + 1 }, (_, i) => first + i);
  const z = horizons.map((horizon) => {
    const found = new Map(pairs(weights.history[horizon]));
    return places.map((place) => (found.get(place) || 0) / 1000);
  });
  const heat = { type: "heatmap", x: places.map(date), y: horizons, z, zmin: 0, colorscale: "Cividis", colorbar: { title: { text: "weight" }, tickformat: ".0%", thickness: 12 }, hovertemplate: "%{y} ahead looks at %{x}: %{z:.1%}<extra></extra>" };
  const marked = specialDates(item().promotions, first, last);
  draw(byId("attention"), [heat, ...marked], { height: 420, showlegend: marked.length > 0, legend: { orientation: "h", y: -0.25 }, xaxis: { title: { text: "date looked at" } }, yaxis: { title: { text: "steps ahead" } } });
  sayWhatItLooksLike(weights.history);
  drawRevision(weights);
}

function sayWhatItLooksLike(history) {
  const target = targetsOfItem()[state.target];
  const place = item().targets[state.cutoff].indexOf(target);
  const horizon = place < 0 ? 1 : place + 1;
  const top = pairs(history[horizon]).sort((a, b) => b[1] - a[1]).slice(0, 3);
  const about = date(item().targets[state.cutoff][horizon - 1]);
  const said = top.map(([at, weight]) => `${date(at)}${namesAt(at)}, ${percent(weight)}`).join("; ");
  byId("looks-like").textContent = `${about}${namesAt(item().targets[state.cutoff][horizon - 1])} looks like: ${said || "nothing in particular"}.`;
}

function weightsOf(weights, cutoffPlace, target) {
  const place = item().targets[cutoffPlace].indexOf(target);
  if (!weights || place < 0) return null;
  const labelled = (block, name) => pairs((weights[block] || {})[place + 1]).map(([at, weight]) => [at, weight, name(at)]);
  return [...labelled("history", date), ...labelled("feedback", (at) => `forecast ${date(at)}`)];
}

function most(prior, after, isWanted) { // the six names with the largest weights, in order of time
  const size = new Map();
  for (const [at, weight, name] of [...prior, ...after]) if (isWanted(at, name)) size.set(name, Math.max(weight, size.get(name) || 0));
  return [...size.keys()].sort((a, b) => size.get(b) - size.get(a)).slice(0, 6).sort();
}

function drawRevision(now) {
  const target = targetsOfItem()[state.target];
  const all = (item().attention || {})[state.model] || {};
  const earlier = state.cutoff - 1;
  const after = weightsOf(now, state.cutoff, target);
  const prior = earlier >= 0 ? weightsOf(all[item().cutoffs[earlier]], earlier, target) : null;
  byId("revision").hidden = !after || !prior;
  if (!after || !prior) {
    byId("revised").textContent = `${date(target)} was not forecast both at this cutoff and at the one before; choose another date or cutoff.`;
    return;
  }
  const [x, y] = [earlier, state.cutoff].map((at) => item().quantiles[state.model][at][middle][item().targets[at].indexOf(target)]);
  const fresh = after.filter(([at, , name]) => name === date(at) && at > item().cutoffs[earlier]);
  const feedback = after.filter(([at, , name]) => name !== date(at)).sort((a, b) => b[1] - a[1]).slice(0, 3);
  const news = fresh.map(([at, weight]) => `${date(at)}${namesAt(at)}, when ${number(actualOf(at))} was sold (${percent(weight)})`).join("; ");
  const old = feedback.map(([at, weight]) => `that of ${date(at)} (${percent(weight)})`).join(", ");
  byId("revised").textContent = `${date(target)}: ${levelName(data.levels[middle])} went from ${number(x)} to ${number(y)}. New: ${news || "no week it looks at"}. Earlier forecasts: ${old || "none"}.`;
  const names = [...most(prior, after, (at, name) => name === date(at)), ...most(prior, after, (at, name) => name !== date(at))];
  const bar = (found, at, i) => ({ type: "bar", x: names, y: names.map((name) => (found.find((one) => one[2] === name) || [0, 0])[1] / 1000), name: `made at ${date(item().cutoffs[at])}`, marker: { color: PALETTE[i] } });
  draw(byId("revision"), [bar(prior, earlier, 0), bar(after, state.cutoff, 1)], { height: 360, barmode: "group", showlegend: true, legend: { orientation: "h", y: 1.15 }, xaxis: { type: "category" }, yaxis: { tickformat: ".0%", title: { text: "weight" } } });
}

async function chooseItem(place) {
  state.item = place;
  const one = (await chunk(1 + Math.floor(place / data.per_chunk)))[place % data.per_chunk];
  if (state.item !== place) return; // another one was chosen meanwhile
  state.one = one;
  byId("item").value = String(place);
  byId("item-name").textContent = nameOf();
  byId("item-why").textContent = [...state.index.about[place].map(([name, text]) => `${name}: ${text}`), state.index.why[place]].join(" · ");
  byId("one").hidden = false;
  byId("cutoff").max = one.cutoffs.length - 1;
  state.cutoff = Math.min(Math.floor(one.cutoffs.length * 0.7), one.cutoffs.length - 1);
  byId("cutoff").value = state.cutoff;
  const targets = targetsOfItem();
  byId("target").max = targets.length - 1;
  state.target = targets.indexOf(one.targets[state.cutoff][0]);
  byId("target").value = state.target;
  drawAll();
}

function nothing() {
  Object.assign(state, { item: null, one: null });
  byId("item-name").textContent = "";
  byId("item-why").textContent = "";
  byId("one").hidden = true;
  for (const name of ["fan", "evolution", "attention", "revision"]) clear(byId(name));
}

function chooseForecast({ model, cutoff, date: target }) { // as far as it is on this page
  if (data.models.includes(model)) state.model = data.models.indexOf(model);
  const at = item().cutoffs.indexOf(data.dates.indexOf(cutoff));
  const place = targetsOfItem().indexOf(data.dates.indexOf(target));
  if (at >= 0) state.cutoff = at;
  if (place >= 0) state.target = place;
  byId("model").value = String(state.model);
  byId("cutoff").value = state.cutoff;
  byId("target").value = state.target;
  drawAll();
}

let isSeen = false;
function drawAll() {
  if (!isSeen || !state.one) return;
  drawFan();
  drawEvolution();
  drawWhy();
}

function list(query) {
  const wanted = query.trim().toLowerCase();
  const { ids, why, about, others } = state.index;
  const has = (text) => text.toLowerCase().includes(wanted);
  const matches = ids.map((_, i) => i).filter((i) => has(ids[i]) || about[i].some(([, text]) => has(text)));
  byId("item").replaceChildren();
  for (const reason of new Set(matches.map((i) => why[i]))) {
    const group = document.createElement("optgroup");
    group.label = reason;
    for (const i of matches.filter((other) => why[other] === reason)) {
      const option = document.createElement("option");
      option.value = String(i);
      option.textContent = `\u2068${ids[i]}\u2069`;
      group.append(option);
    }
    byId("item").append(group);
  }
  const elsewhere = wanted === "" ? [] : others.filter(has);
  const told = elsewhere.length ? ` ${elsewhere.length.toLocaleString("en")} more were forecast, but are not on this page: ${elsewhere.slice(0, 3).map((id) => `\u2068${id}\u2069`).join(", ")}${elsewhere.length > 3 ? " …" : ""}. To see them, write the report with items=[…] or --item.` : "";
  byId("found").textContent = `${matches.length.toLocaleString("en")} of ${ids.length.toLocaleString("en")} items on this page match.${told}`;
  return matches;
}

function search() {
  const found = list(byId("search").value);
  if (found.includes(state.item)) byId("item").value = String(state.item);
  else if (found.length) chooseItem(found[0]);
  else nothing();
}

async function pick(button) {
  byId("search").value = "";
  list("");
  await chooseItem(Number(button.dataset.item));
  if (button.dataset.model !== undefined) chooseForecast(button.dataset);
  byId("item-title").scrollIntoView();
  byId("item").focus({ preventScroll: true });
}

function show() {
  nearby.disconnect();
  if (isSeen) return;
  isSeen = true;
  drawAll();
}
const nearby = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && show(), { rootMargin: "400px" });

async function start() {
  if (!canUnpack()) return;
  state.index = await chunk(0);
  byId("search").addEventListener("input", search);
  byId("item").addEventListener("change", (event) => chooseItem(Number(event.target.value)));
  byId("model").addEventListener("change", (event) => { state.model = Number(event.target.value); drawAll(); });
  byId("cutoff").addEventListener("input", (event) => { state.cutoff = Number(event.target.value); drawAll(); });
  byId("target").addEventListener("input", (event) => { state.target = Number(event.target.value); drawAll(); });
  byId("recent").checked = innerWidth < 520;
  for (const id of ["recent", "fitted", "logarithmic"]) byId(id).addEventListener("change", drawAll);
  for (const button of document.querySelectorAll("section:not(#items-explorer) .pick")) button.addEventListener("click", () => pick(button));
  data.models.forEach((name, i) => {
    const option = document.createElement("option");
    option.value = String(i);
    option.textContent = name.length > 80 ? `${name.slice(0, 79)}…` : name;
    byId("model").append(option);
  });
  byId("model").value = String(state.model);
  list("");
  await chooseItem(0);
  nearby.observe(byId("explorer"));
}

addEventListener("beforeprint", show);
start();
