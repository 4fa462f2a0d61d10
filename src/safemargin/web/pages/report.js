"use strict";
// The report: one record of numbers and pictures, drawn.

const data = JSON.parse(element("data").textContent);
const tables = new MarginTables(data.tables);
const fact = name => (data.facts.find(each => each[0] === name) || ["", ""])[1];
const percent = share => share === null ? "–" : (100 * share).toFixed(1) + "\u00a0%";

document.title = `${fact("environment")} – safemargin report`;
element("title").textContent = `${fact("environment")}: how many mistakes can it afford?`;
element("subtitle").textContent = `${fact("policy")} · ${fact("moments")} moments · ${fact("trials").split(":")[0]} trials`;
element("notes").append(...data.notes.map(text => make("p", {className: "note", textContent: text[0].toUpperCase() + text.slice(1) + "."})));
element("facts").append(...data.facts.map(([name, value]) => make("tr", {}, make("td", {textContent: name}), make("td", {textContent: value}))));
element("findings").append(...data.findings.map(([level, text]) => make("li", {className: level === "note" ? "note-line" : level, textContent: text})));

const table = () => tables.tables[Number(element("confidence").value)];
const tolerance = () => toleranceAt(Number(element("tolerance").value), tables);
const proxyNow = () => Number(element("lookup-proxy").value);

// -- margins ----------------------------------------------------------------------------------

function beginMargins() {
  if (tables.note) { element("margin-note").hidden = false; element("margin-note").textContent = "No margins: " + tables.note + "."; }
  if (!tables.tables.length) { for (const part of document.querySelectorAll("#margins .controls, #margins .pair, #margins > p.quiet")) part.hidden = true; document.querySelector("#margins .controls").style.display = document.querySelector("#margins .pair").style.display = "none"; return; }
  element("confidence").max = tables.tables.length - 1;
  element("confidence").value = Math.max(tables.tables.findIndex(each => each.confidence === tables.confidence), 0);
  element("tolerance").value = positionOf(tables.tolerance, tables);
  const grid = tables.tables[0].grid[0];
  element("lookup-proxy").value = roundTo(grid[Math.floor(grid.length / 2)], 3);
  for (const id of ["confidence", "tolerance", "lookup-proxy"]) element(id).oninput = calmly(drawMargins);
  drawMargins();
}

function drawMargins() {
  const c = colours(), chosen = table(), level = tolerance(), grid = chosen.grid[0], steps = [0, ...tables.n_values];
  element("confidence-text").textContent = chosen.confidence;
  element("tolerance-text").textContent = show(level);
  const note = chosen.bounded ? "" : chosen.notes[0] || "the data allow no bound at this confidence";
  element("margin-note").hidden = !note;
  element("margin-note").textContent = note ? note[0].toUpperCase() + note.slice(1) + "." : "";
  const margin = tables.looks_at_n ? null : tables.at(chosen, proxyNow(), level), above = proxyNow() > grid[grid.length - 1];
  element("lookup").textContent = margin === null ? "–" : margin;
  element("lookup-text").textContent = tables.looks_at_n ? "this proxy looks at n: look it up with safemargin margin" : above ? "above all proxies that were measured" : `random action${margin === 1 ? "" : "s"} affordable`;
  drawCards();
  tellLead(chosen, level);
  if (tables.looks_at_n) { document.querySelector(".pair").style.display = "none"; return; }
  const rows = 120, levels = Array.from({length: rows}, (_, i) => tables.highest_tolerance * 1.05 * i / (rows - 1));
  const z = levels.map(each => grid.map(value => steps.indexOf(tables.at(chosen, value, each))));
  const scale = steps.flatMap((_, i) => [[i / steps.length, marginColour(steps[i], tables.n_values, c)], [(i + 1) / steps.length, marginColour(steps[i], tables.n_values, c)]]);
  Plotly.react("heatmap", [{type: "heatmap", x: grid, y: levels, z, zmin: -0.5, zmax: steps.length - 0.5, colorscale: scale, customdata: z.map(row => row.map(i => steps[i])),
    colorbar: {tickvals: steps.map((_, i) => i), ticktext: steps, thickness: 12, outlinewidth: 0, title: {text: "margin", side: "right"}},
    hovertemplate: "margin %{customdata} at proxy %{x:.4g}, tolerance %{y:.4g}<extra></extra>"}],
    baseLayout({xaxis: axis({title: {text: "proxy: " + data.proxy_text}, zeroline: false}), yaxis: axis({title: {text: "tolerance ζ"}, zeroline: false}), height: 380,
      shapes: [{type: "line", xref: "paper", x0: 0, x1: 1, y0: level, y1: level, line: {color: c.ink, width: 1, dash: "dot"}},
        {type: "line", yref: "paper", y0: 0, y1: 1, x0: proxyNow(), x1: proxyNow(), line: {color: c.ink, width: 1, dash: "dot"}}]}), CONFIG);
  const lines = tables.n_values.map((n, i) => ({x: grid, y: chosen.upper[i], mode: "lines", name: `n = ${n}`, line: {width: 1.6, color: mix(c.low.length === 7 ? c.middle : "#ee9b3c", c.accent.length === 7 ? c.accent : "#1f5fbf", i / Math.max(tables.n_values.length - 1, 1))}, hovertemplate: `n = ${n}: at most %{y:.4g}<extra></extra>`}));
  Plotly.react("curve", lines, baseLayout({showlegend: true, legend: {orientation: "h", y: -0.2}, hovermode: "x unified", height: 380,
    xaxis: axis({title: {text: "proxy: " + data.proxy_text}, zeroline: false}), yaxis: axis({title: {text: "bound on the loss"}, rangemode: "tozero"}),
    shapes: [{type: "line", xref: "paper", x0: 0, x1: 1, y0: level, y1: level, line: {color: c.ink, width: 1, dash: "dot"}}]}), CONFIG);
}

// The answer in one sentence, for the moments as the agent meets them.
function tellLead(chosen, level) {
  element("lead").replaceChildren();
  if (!chosen.bounded || !data.natural_proxies.length) return;
  const found = data.natural_proxies.map(proxy => tables.at(chosen, proxy, level)).sort((a, b) => a - b);
  const none = found.filter(margin => margin === 0).length / found.length, median = found[Math.floor((found.length - 1) / 2)];
  const most = tables.n_values[tables.n_values.length - 1], all = found.filter(margin => margin === most).length / found.length;
  element("lead").append("If you accept a loss of ", make("b", {textContent: show(level)}), ` and want to be ${Math.round(chosen.confidence * 1000) / 10} % sure, the agent can afford `,
    make("b", {textContent: `${median} random action${median === 1 ? "" : "s"}`}), " at the median moment; at ", make("b", {textContent: percent(none)}), " of moments it can afford none",
    all > 0 && median !== most ? `, at ${percent(all)} of them ${most} or more.` : ".");
}

function titleOf(name) {
  const [phase, index, life] = name.split("-"), lives = data.moments.some(each => !each.episode.endsWith("-0"));
  return `${phase} ${index}` + (lives ? ` · life ${Number(life) + 1}` : "");
}

function drawCards() {
  const chosen = table(), level = tolerance(), most = Math.max(...data.moments.flatMap(each => each.losses), 1e-9);
  element("cards").replaceChildren(...data.moments.map((moment, rank) => {
    const bars = moment.losses.map((loss, i) => {
      const fill = make("div", {className: "fill"});
      fill.style.width = 100 * Math.max(loss, 0) / most + "%";
      const half = moment.half_widths[i];
      return make("div", {className: "loss" + (loss > level ? " broken" : ""), title: `${tables.n_values[i]} random actions lose ${show(loss)}${half ? " ± " + show(half) : ""} on average`},
        make("span", {className: "quiet", textContent: `n = ${tables.n_values[i]}`}), make("div", {className: "track"}, fill), make("span", {textContent: show(roundTo(loss, 3))}));
    });
    const margin = chosen && chosen.bounded ? tables.at(chosen, moment.proxy, level) : null;
    const heading = make("div", {className: "bar"}, make("b", {textContent: `${rank + 1}. ${titleOf(moment.episode)}`}));
    if (margin !== null) {
      const mark = make("span", {className: "badge", textContent: margin, title: `margin ${margin} by its proxy`});
      mark.style.background = marginColour(margin, tables.n_values, colours());
      heading.append(mark);
    }
    const card = make("div", {className: "card"});
    if (moment.picture) card.append(make("img", {src: moment.picture, alt: `step ${moment.step} of ${moment.episode}`}));
    const proxy = Array.isArray(moment.proxy) ? moment.proxy[0] : moment.proxy;
    card.append(make("div", {className: "body"}, heading, make("div", {className: "quiet small", textContent: `step ${moment.step.toLocaleString("en")} of ${moment.steps.toLocaleString("en")} · proxy ${show(proxy)}`}), ...bars));
    return card;
  }));
}

// -- densities --------------------------------------------------------------------------------

function drawDensities() {
  const info = data.densities;
  element("densities-section").hidden = !info;
  if (!info) return;
  element("densities-text").textContent = `True criticality (the mean loss after n random actions) given the proxy: bright where moments are likely. Each dot is a moment${info.dropped ? `; the ${info.dropped} with the highest proxies are left out, as in the paper` : ""}.`;
  const columns = Math.min(info.panels.length, 3), rows = Math.ceil(info.panels.length / columns), c = colours();
  const traces = [], layout = {grid: {rows, columns, pattern: "independent", xgap: 0.14, ygap: 0.28}, annotations: [], height: 250 * rows + 70, showlegend: true, legend: {orientation: "h", yanchor: "top", y: -52 / (250 * rows - 20)}};
  info.panels.forEach((panel, i) => {
    const suffix = i ? String(i + 1) : "", axes = {xaxis: "x" + suffix, yaxis: "y" + suffix};
    const bytes = Uint8Array.from(atob(panel.shade), each => each.charCodeAt(0)), [height, width] = panel.rows;
    const z = Array.from({length: height}, (_, row) => Array.from(bytes.subarray(row * width, (row + 1) * width)));
    traces.push({type: "heatmap", x: panel.proxy, y: panel.criticality, z, zmin: 0, zmax: 255, colorscale: "Cividis", showscale: false, hoverinfo: "skip", ...axes});
    traces.push({x: panel.x, y: panel.y, mode: "markers", marker: {size: 3, color: "#fff", opacity: 0.45}, showlegend: false, hovertemplate: "proxy %{x:.4g}: loses %{y:.4g}<extra></extra>", ...axes});
    for (const [name, text, dash] of [["percentile", `${100 * info.confidence} % percentile`, "solid"], ["mean", "mean", "dash"], ["median", "median", "dot"]]) {
      traces.push({x: panel.proxy, y: panel[name], mode: "lines", name: text, legendgroup: name, showlegend: i === 0, line: {color: "#ff8f6b", width: 1.8, dash}, hovertemplate: text + " %{y:.4g}<extra></extra>", ...axes});
    }
    const flat = panel.criticality[0] === panel.criticality[panel.criticality.length - 1];
    layout["xaxis" + suffix] = axis({range: [panel.proxy[0], panel.proxy[panel.proxy.length - 1]], zeroline: false, title: i >= info.panels.length - columns ? {text: data.proxy_text, standoff: 4} : undefined});
    layout["yaxis" + suffix] = axis({zeroline: false, range: flat ? undefined : [panel.criticality[0], panel.criticality[panel.criticality.length - 1]], title: i % columns === 0 ? {text: "loss"} : undefined});
    layout.annotations.push({xref: `x${suffix} domain`, yref: `y${suffix} domain`, x: 0.5, y: 1, yanchor: "bottom", text: `n = ${panel.n}`, showarrow: false, font: {color: c.ink}});
  });
  Plotly.react("densities", traces, baseLayout({...layout, margin: {l: 58, r: 14, t: 34, b: 84}}), CONFIG);
}

// -- proxies ----------------------------------------------------------------------------------

function drawProxies() {
  const info = data.comparison, c = colours();
  element("proxies-section").hidden = !info;
  if (!info) return;
  element("proxies-text").textContent = `The default method with each recorded proxy, judged on ${info.natural_moments} natural moments that its fits had not seen, at confidence ${info.confidence} and tolerance ${show(info.tolerance)}. A better proxy grants larger margins and still keeps its promise. safemargin compare judges all methods.`;
  const ranked = [...info.candidates].sort((a, b) => b.holds - a.holds || b.mean_margin - a.mean_margin);
  Plotly.react("proxies-chart", [{type: "bar", orientation: "h", y: ranked.map(each => each.text).reverse(), x: ranked.map(each => each.mean_margin).reverse(), marker: {color: ranked.map(each => each.holds ? c.accent : c.high).reverse()}, width: 0.6, hovertemplate: "mean margin %{x:.3g}<extra>%{y}</extra>"}],
    baseLayout({height: 60 + 34 * ranked.length, margin: {l: 160, r: 14, t: 4, b: 36}, xaxis: axis({title: {text: "mean margin", standoff: 4}}), yaxis: axis({})}), {...CONFIG, displayModeBar: false});
  const head = make("tr", {}, make("th", {textContent: "proxy"}), ...["mean margin", "margins broken", "coverage", "coverage, worst fifth", "keeps its promise"].map(text => make("th", {className: "number", textContent: text})));
  element("proxies-table").replaceChildren(head, ...ranked.map((each, i) => make("tr", {className: i === 0 && each.holds ? "best" : ""}, make("td", {textContent: each.text}),
    ...[each.mean_margin.toFixed(2), percent(each.broken), percent(each.coverage), percent(each.worst_part), each.holds ? "not refuted" : "no"].map(text => make("td", {className: "number", textContent: text})))));
}

function drawAll() {
  beginMargins();
  element("moments-section").hidden = !data.moments.length;
  if (!tables.tables.length && data.moments.length) drawCards();
  drawDensities();
  drawProxies();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (tables.tables.length) drawMargins(); drawDensities(); drawProxies(); });
drawAll();
