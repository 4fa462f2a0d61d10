"use strict";
// The report: draws one record of numbers and pictures.

const data = JSON.parse(element("data").textContent);
const tables = new MarginTables(data.tables);
speakOf(data.measured);
const fact = name => (data.facts.find(each => each[0] === name) || ["", ""])[1];
const percent = share => share === null ? "–" : roundTo(100 * share, 3) + "\u00a0%";
const sentence = text => text[0].toUpperCase() + text.slice(1) + ".";

const table = () => tables.tables[Number(element("confidence").value)];
const tolerance = () => toleranceAt(Number(element("tolerance").value), tables);
const proxyNow = () => Number(element("lookup-proxy").value);

function showFacts() {
  const environment = shortName(fact("environment"));
  document.title = `${environment} – safemargin report`;
  element("title").textContent = `${environment}: how many mistakes can it afford?`;
  element("subtitle").textContent = [shortName(fact("policy")), fact("moments") + " moments",
    fact("trials").split(":")[0] + " trials"].join(" · ");
  element("notes").append(...data.notes.map(text =>
    make("p", {className: "note", textContent: sentence(text)})));
  element("facts").append(...data.facts.map(([name, value]) =>
    make("tr", {}, make("td", {textContent: name}), make("td", {textContent: value}))));
  element("findings").append(...data.findings.map(([level, text]) =>
    make("li", {className: level === "note" ? "note-line" : level, textContent: text})));
}

// -- margins ----------------------------------------------------------------------------------

function beginMargins() {
  // A reason already given above is not repeated.
  const given = data.notes.some(text => tables.note && text.includes(tables.note));
  showNote(tables.note && !given ? "no margins: " + tables.note : "");
  element("margins").hidden = given && !tables.tables.length;
  element("margins-body").hidden = !tables.tables.length;
  if (!tables.tables.length) return drawCards();
  const first = tables.tables.findIndex(each => each.confidence === tables.confidence);
  element("confidence").max = tables.tables.length - 1;
  element("confidence").value = Math.max(first, 0);
  element("tolerance").value = positionOf(tables.tolerance, tables);
  const grid = tables.tables[0].grid[0];
  element("lookup-proxy").value = roundTo(grid[Math.floor(grid.length / 2)], 3);
  for (const id of ["confidence", "tolerance", "lookup-proxy"]) {
    element(id).oninput = calmly(drawMargins);
  }
  drawMargins();
}

function showNote(text) {
  element("margin-note").hidden = !text;
  element("margin-note").textContent = text ? sentence(text) : "";
}

function drawMargins() {
  const chosen = table(), level = tolerance();
  element("confidence-text").textContent = chosen.confidence;
  element("tolerance-text").textContent = show(level);
  sayValue("confidence", `${chosen.confidence}${chosen.enough ? "" : ", " + TOO_LITTLE}`);
  sayValue("tolerance", `a loss of ${show(level)}`);
  showNote(chosen.enough ? "" : tables.tooLittle(chosen));
  element("choice").textContent = tables.usable ? sentence(tables.choice) : "";
  showLookup(chosen, level);
  showLead(chosen, level);
  drawCards();
  element("margin-charts").hidden = tables.looks_at_n;
  if (tables.looks_at_n) return;
  drawHeatmap(chosen, level);
  drawBounds(chosen, level);
}

function showLookup(chosen, level) {
  if (tables.looks_at_n) {
    element("lookup-text").textContent = "this proxy depends on n; use safemargin margin";
    return;
  }
  const margin = tables.at(chosen, proxyNow(), level);
  const unknown = !chosen.enough || tables.unknown(chosen, proxyNow());
  element("lookup").textContent = unknown ? "?" : margin;
  element("lookup").style.color = unknown ? "var(--unknown)" : "";
  element("lookup-text").textContent = !chosen.enough ? TOO_LITTLE : unknown ? UNKNOWN
    : `${margin === 1 ? said.mistake : said.mistakes} affordable`;
}

// The answer in one sentence, for the natural moments.
function showLead(chosen, level) {
  element("lead").replaceChildren();
  element("lead").classList.toggle("unknown", !chosen.enough);
  if (!data.natural_proxies.length) return;
  if (!chosen.enough) {
    element("lead").append(sentence(tables.tooLittle(chosen)), " Nothing is known about the margins"
      + " here: collect more natural moments, or accept a lower confidence.");
    return;
  }
  const found = data.natural_proxies.map(proxy => tables.at(chosen, proxy, level));
  found.sort((a, b) => a - b);
  const shareOf = margin => found.filter(each => each === margin).length / found.length;
  const middle = tables.median_proxy;
  const median = middle === null ? found[Math.floor((found.length - 1) / 2)]
    : tables.at(chosen, middle, level);
  const most = tables.n_values[tables.n_values.length - 1], all = shareOf(most);
  const strong = text => make("b", {textContent: text});
  element("lead").append("If you accept a loss of ", strong(show(level)),
    ` and want to be ${percent(chosen.confidence)} sure, the agent can afford `,
    strong(mistakes(median)), " at the median moment; ");
  if (shareOf(0)) {
    element("lead").append("at ", strong(percent(shareOf(0))), " of moments it can afford none");
  } else element("lead").append("there is none at which it can afford none");
  element("lead").append(
    all > 0 && median !== most ? `, at ${percent(all)} of them ${most} or more.` : ".");
  if (middle !== null && !tables.looks_at_n) showAround(chosen, level, middle);
}

// How the answer changes around the tolerance: the margin at the median moment, range by range.
function showAround(chosen, level, middle) {
  const parts = tables.plateaus(chosen, middle);
  const near = value => show(roundTo(value, 3));
  const range = part => part.to === Infinity ? `${near(part.from)} or more`
    : `${near(part.from)} to ${near(part.to)}`;
  const cells = text => parts.map(part => make("td", {textContent: text(part),
    className: part.from <= level && level < part.to ? "here" : ""}));
  const natural = data.natural_proxies, none = part => percent(natural.filter(proxy =>
    tables.at(chosen, proxy, middleOf(part)) === 0).length / natural.length);
  element("lead").append(make("div", {className: "scrolls"}, make("table", {className: "around"},
    make("tr", {}, make("th", {textContent: "loss you accept"}), ...cells(range)),
    make("tr", {}, make("th", {textContent: "affordable at the median moment"}),
      ...cells(part => part.margin)),
    make("tr", {}, make("th", {textContent: "moments with none (mid-range)"}), ...cells(none)))));
}

const middleOf = part => part.to === Infinity ? part.from : (part.from + part.to) / 2;

function dotted(more) {
  return {type: "line", line: {color: colours().ink, width: 1, dash: "dot"}, ...more};
}

function drawHeatmap(chosen, level) {
  summarise("heatmap", chosen.enough ? "Map of the margin over proxy and tolerance: "
    + `at tolerance ${show(level)} it is ${rangeOf(chosen, level)}.` : tables.tooLittle(chosen));
  const c = colours(), grid = chosen.grid[0], steps = [0, ...tables.n_values], rows = 120;
  const levels = Array.from({length: rows}, (_, i) =>
    tables.highest_tolerance * 1.05 * i / (rows - 1));
  const margins = levels.map(each => grid.map(value => tables.at(chosen, value, each)));
  const places = new Map(steps.map((margin, i) => [margin, i]));
  const colorscale = steps.flatMap((margin, i) => [0, 1].map(end => [(i + end) / steps.length,
    chosen.enough ? marginColour(margin, tables.n_values, c) : c.nothing]));
  const traces = [{type: "heatmap", x: grid, y: levels, customdata: margins, colorscale,
    z: margins.map(row => row.map(margin => places.get(margin))),
    zmin: -0.5, zmax: steps.length - 0.5,
    colorbar: {tickvals: steps.map((_, i) => i), ticktext: steps, thickness: 12, outlinewidth: 0,
      title: {text: "margin", side: "right"}},
    showscale: chosen.enough, hoverinfo: chosen.enough ? undefined : "skip",
    hovertemplate: chosen.enough
      ? "margin %{customdata} at proxy %{x:.4g}, tolerance %{y:.4g}<extra></extra>" : undefined}];
  const nothing = {xref: "paper", yref: "paper", x: 0.5, y: 0.5, showarrow: false,
    font: {color: c.ink, size: 14},
    text: `${TOO_LITTLE}<br>${chosen.needed} natural moments needed`};
  Plotly.react("heatmap", traces, baseLayout({height: 380,
    xaxis: axis({title: {text: "proxy: " + data.proxy_text}, zeroline: false}),
    yaxis: axis({title: {text: "tolerance ζ"}, zeroline: false}),
    annotations: chosen.enough ? [] : [nothing],
    shapes: [dotted({xref: "paper", x0: 0, x1: 1, y0: level, y1: level}),
      dotted({yref: "paper", y0: 0, y1: 1, x0: proxyNow(), x1: proxyNow()})]}), CONFIG);
}

// '16 at the lowest proxy and 0 at the highest one'
function rangeOf(chosen, level) {
  const grid = chosen.grid[0], at = proxy => tables.at(chosen, proxy, level);
  return `${at(grid[0])} at the lowest proxy and ${at(grid[grid.length - 1])} at the highest one`;
}

function drawBounds(chosen, level) {
  const highest = i => chosen.upper[i][chosen.upper[i].length - 1];
  summarise("bounds", "Bounds on the loss over the proxy; at the highest proxy "
    + tables.n_values.map((n, i) => `${show(highest(i))} for n = ${n}`).join(", ") + ".");
  const grid = chosen.grid[0];
  const lines = tables.n_values.map((n, i) => ({x: grid, y: chosen.upper[i], mode: "lines",
    name: `n = ${n}`, line: lineStyle(i),
    hovertemplate: `n = ${n}: at most %{y:.4g}<extra></extra>`}));
  Plotly.react("bounds", lines, baseLayout({height: 380, hovermode: "x unified",
    showlegend: true, legend: {orientation: "h", y: -0.2},
    xaxis: axis({title: {text: "proxy: " + data.proxy_text}, zeroline: false}),
    yaxis: axis({title: {text: "bound on the loss"}, rangemode: "tozero"}),
    shapes: [dotted({xref: "paper", x0: 0, x1: 1, y0: level, y1: level})]}), CONFIG);
}

// -- the most critical moments ----------------------------------------------------------------

function drawCards() {
  element("moments-section").hidden = !data.moments.length;
  element("phases-help").textContent = `${PHASES.natural}; ${PHASES.spread}.`;
  const most = Math.max(...data.moments.flatMap(each => each.losses), 1e-9);
  element("cards").replaceChildren(...data.moments.map((moment, rank) =>
    cardOf(moment, rank, most)));
}

function cardOf(moment, rank, most) {
  const chosen = table(), heading = make("div", {className: "bar"},
    make("b", {textContent: `${rank + 1}. ${moment.title}`,
      title: PHASES[moment.episode.split("-")[0]]}));
  if (chosen) {
    heading.append(badge(tables.at(chosen, moment.proxy, tolerance()), tables.n_values,
      chosen.enough ? tables.unknown(chosen, moment.proxy) && UNKNOWN : TOO_LITTLE));
  }
  const proxy = Array.isArray(moment.proxy) ? moment.proxy[0] : moment.proxy;
  const steps = moment.steps.toLocaleString("en");
  const where = `step ${moment.step.toLocaleString("en")} of ${steps} · proxy ${show(proxy)}`;
  const card = make("div", {className: "card", id: `moment-${rank + 1}`});
  if (moment.picture) card.append(make("img", {src: moment.picture, alt: where}));
  const level = tables.tables.length ? tolerance() : null;
  const results = moment.losses.map((mean, i) =>
    ({n: tables.n_values[i], mean, half_width: moment.half_widths[i]}));
  card.append(make("div", {className: "body"}, heading,
    make("div", {className: "quiet small", textContent: where}),
    ...results.map(each => lossBar(each, most, level)),
    make("p", {className: "verdict", textContent: verdict(results, level)}),
    make("code", {className: "command", textContent: moment.command,
      title: "Opens this moment in the explorer; click to select",
      onclick: event => getSelection().selectAllChildren(event.target)})));
  return card;
}

// -- densities --------------------------------------------------------------------------------

const NARROW = matchMedia("(max-width: 640px)");

function drawDensities() {
  const info = data.densities;
  element("densities-section").hidden = !info;
  if (!info) return;
  const left_out = info.dropped
    ? `; the ${info.dropped} with the highest proxies are left out, as in the paper` : "";
  element("densities-text").textContent = 
    `True criticality (the mean loss of ${said.unit} after n ${said.mistakes}) given the proxy: bright where moments are likely. Each dot is a moment${left_out}.`;
  const columns = Math.min(info.panels.length, NARROW.matches ? 1 : 3);
  const rows = Math.ceil(info.panels.length / columns), height = 250 * rows + 100;
  const layout = baseLayout({height, margin: {l: 58, r: 14, t: 34, b: 84}, annotations: [],
    grid: {rows, columns, pattern: "independent", xgap: 0.14, ygap: 0.28},
    showlegend: true, legend: {orientation: "h", yanchor: "top", y: -52 / (height - 118)}});
  const traces = info.panels.flatMap((panel, i) => {
    addPanel(layout, panel, i, columns, info.panels.length);
    return panelTraces(panel, i, info.confidence);
  });
  summarise("densities", "Densities of the loss given the proxy, one panel for each of n = "
    + info.panels.map(panel => panel.n).join(", ") + ", with a dot for each moment.");
  Plotly.react("densities", traces, layout, CONFIG);
}

const suffixOf = i => i ? String(i + 1) : "";

function panelTraces(panel, i, confidence) {
  const place = {xaxis: "x" + suffixOf(i), yaxis: "y" + suffixOf(i)}, [height, width] = panel.rows;
  const bytes = Uint8Array.from(atob(panel.shade), each => each.charCodeAt(0));
  const z = Array.from({length: height}, (_, row) =>
    Array.from(bytes.subarray(row * width, (row + 1) * width)));
  const curves = [["percentile", `${100 * confidence} % percentile`, "solid"],
    ["mean", "mean", "dash"], ["median", "median", "dot"]];
  return [
    {type: "heatmap", x: panel.proxy, y: panel.criticality, z, zmin: 0, zmax: 255,
      colorscale: "Cividis", showscale: false, hoverinfo: "skip", ...place},
    {x: panel.x, y: panel.y, mode: "markers", marker: {size: 3, color: "#fff", opacity: 0.45},
      text: panel.y.map(loses), showlegend: false,
      hovertemplate: "proxy %{x:.4g}: %{text}<extra></extra>", ...place},
    ...curves.map(([name, text, dash]) => ({x: panel.proxy, y: panel[name], mode: "lines",
      name: text, legendgroup: name, showlegend: i === 0,
      line: {color: "#ff8f6b", width: 1.8, dash},
      hovertemplate: text + " %{y:.4g}<extra></extra>", ...place})),
  ];
}

function addPanel(layout, panel, i, columns, count) {
  const suffix = suffixOf(i), ends = list => [list[0], list[list.length - 1]];
  const [low, high] = ends(panel.criticality);
  layout["xaxis" + suffix] = axis({range: ends(panel.proxy), zeroline: false, nticks: 6,
    title: i >= count - columns ? {text: data.proxy_text, standoff: 4} : undefined});
  layout["yaxis" + suffix] = axis({range: low === high ? undefined : [low, high], zeroline: false,
    title: i % columns === 0 ? {text: "loss"} : undefined});
  layout.annotations.push({xref: `x${suffix} domain`, yref: `y${suffix} domain`, x: 0.5, y: 1,
    yanchor: "bottom", text: `n = ${panel.n}`, showarrow: false, font: {color: colours().ink}});
}

// -- proxies ----------------------------------------------------------------------------------

function drawProxies() {
  const info = data.comparison, c = colours();
  element("proxies-section").hidden = !info;
  if (!info) return;
  element("proxies-text").textContent = "The default method with each recorded proxy, evaluated "
    + `on ${info.natural_moments} natural moments held out from its fits, at confidence `
    + `${info.confidence} and tolerance ${show(info.tolerance)}. A better proxy grants larger `
    + "margins and still keeps its promise; \u201cwithin noise\u201d means that a paired test on these "
    + "moments shows no difference from the best. safemargin compare evaluates all methods.";
  const ranked = [...info.candidates];
  ranked.sort((a, b) => b.holds - a.holds || b.mean_margin - a.mean_margin);
  const upwards = [...ranked].reverse();  // bars are drawn from below
  summarise("proxies-chart", "Mean margin by proxy; the table below holds the numbers.");
  Plotly.react("proxies-chart", [{type: "bar", orientation: "h", width: 0.6,
    y: upwards.map(each => each.text), x: upwards.map(each => each.mean_margin),
    marker: {color: upwards.map(each => each.holds ? c.accent : c.high)},
    hovertemplate: "mean margin %{x:.3g}<extra>%{y}</extra>"}],
  baseLayout({height: 60 + 34 * ranked.length, margin: {l: 60, r: 14, t: 4, b: 36},
    xaxis: axis({title: {text: "mean margin", standoff: 4}}), yaxis: axis({automargin: true})}),
  {...CONFIG, displayModeBar: false});
  const heads = ["mean margin", "margins broken", "coverage", "coverage, worst fifth",
    "keeps its promise", "against the best"];
  const decided = ranked.length > 1 && !ranked.some(each => each.undecided);
  const row = (tag, name, cells, className = "") => make("tr", {className},
    make(tag, {textContent: name}),
    ...cells.map(textContent => make(tag, {className: "number", textContent})));
  element("proxies-table").replaceChildren(row("th", "proxy", heads), ...ranked.map((each, i) =>
    row("td", each.text, [each.mean_margin.toFixed(2), percent(each.broken),
      percent(each.coverage), percent(each.worst_part), each.holds ? "not refuted" : "no",
      i === 0 && each.holds ? decided ? "best" : "largest" : each.undecided ? "within noise" : ""],
    i === 0 && each.holds && decided ? "best" : "")));
}

// A browser looks for the moment in the address before the charts above it have their sizes.
addEventListener("load", () => document.querySelector(":target")?.scrollIntoView());
showFacts();
beginMargins();
drawDensities();
drawProxies();
NARROW.addEventListener("change", drawDensities);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (tables.tables.length) drawMargins();
  drawDensities();
  drawProxies();
});
