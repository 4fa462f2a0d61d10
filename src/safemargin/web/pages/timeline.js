"use strict";
// A whole episode at a glance: margin, proxy and reward over its steps, and a band of colours.

function drawTimeline() {
  const c = colours(), {episode} = view, steps = episode.rewards.map((_, i) => i);
  const text = view.study.proxies.find(each => each.name === element("proxy").value).text;
  const traces = [
    {x: steps, y: marginRows(), text: view.margins || [], mode: "lines",
      line: {shape: "hv", width: 1.2, color: c.low}, fill: "tozeroy", fillcolor: c.low + "22",
      hovertemplate: "margin %{text}<extra></extra>"},
    {x: steps, y: proxyValues().map(single), yaxis: "y2", mode: "lines",
      line: {width: 1, color: c.accent}, hovertemplate: text + " %{y:.4g}<extra></extra>"},
    {x: steps, y: view.totals.slice(1), yaxis: "y3", mode: "lines",
      line: {width: 1.3, color: c.reward}, customdata: episode.rewards,
      hovertemplate: "reward %{customdata:.4g}, so far %{y:.4g}<extra></extra>"},
    {x: [], y: [], yaxis: "y2", mode: "markers", hoverinfo: "skip",
      marker: {color: c.low, size: 7, symbol: "circle-open", line: {width: 1.6}}},
    {type: "bar", x: [], y: [], width: 1, offset: 0, hovertemplate: `${UNKNOWN}<extra></extra>`,
      marker: {color: c.unknown + "55", line: {color: c.unknown, width: 1},
        pattern: {shape: "/", fgcolor: c.unknown, size: 5}}},
  ];
  Plotly.react("timeline", traces, timelineLayout(), CONFIG).then(chart => {
    if (!chart.wired) {
      chart.wired = true;
      chart.on("plotly_click", event => goTo(event.points[0].x));
      chart.on("plotly_afterplot", () => placeCursor(element("cursor"), chart, view.step));
    }
    drawMargins();
    placeCursor(element("cursor"), chart, view.step);
  });
}

function timelineLayout() {
  const c = colours(), {episode} = view, {moment} = episode;
  const levels = [0, ...view.tables.n_values], every = Math.ceil(levels.length / 7);
  const tickvals = levels.map((_, i) => i).filter(i => i % every === 0);
  const whole = {yref: "paper", y0: 0, y1: 1}, shapes = [], annotations = [];
  if (episode.opening) {
    shapes.push({...whole, type: "rect", x0: 0, x1: episode.opening, fillcolor: c.quiet,
      opacity: 0.12, line: {width: 0}});
  }
  if (moment !== null) {
    shapes.push({...whole, type: "line", x0: moment, x1: moment,
      line: {color: c.quiet, width: 1, dash: "dot"}});
    annotations.push({x: moment, y: 1, yref: "paper", yanchor: "bottom", text: "measured",
      showarrow: false, font: {size: 10}});
  }
  const row = (domain, title, more) =>
    axis({domain, title: {text: title}, fixedrange: true, zeroline: false, nticks: 4, ...more});
  return baseLayout({
    height: 280, margin: {l: 62, r: 14, t: 16, b: 34}, hovermode: "x unified", dragmode: "zoom",
    shapes, annotations,
    xaxis: axis({range: [0, episode.steps], anchor: "y3", zeroline: false,
      title: {text: "step", standoff: 4}}),
    yaxis: row([0.69, 1], "margin", {tickvals, ticktext: tickvals.map(i => levels[i]),
      range: [0, levels.length - 0.8]}),
    yaxis2: row([0.35, 0.64], "proxy"),
    yaxis3: row([0, 0.3], "reward"),
  });
}

// Margins are drawn by their index in 0, 1, 2, 4, …: small margins matter most.
function marginRows() {
  const places = new Map([0, ...view.tables.n_values].map((n, i) => [n, i]));
  return (view.margins || []).map((margin, step) =>
    view.unknown[step] ? null : places.get(margin));
}

function drawMargins() {
  const known = (view.margins || []).filter((_, step) => !view.unknown[step]);
  const least = known.length ? `, the lowest margin is ${Math.min(...known)}` : "";
  summarise("timeline", `Margin, proxy and reward over ${view.episode.steps} steps${least}; `
    + `${view.marks.length} moments are marked.`);
  const c = colours(), values = proxyValues().map(single), {marks, unknown} = view;
  const above = unknown.flatMap((is, step) => is ? [step] : []);
  const height = view.tables.n_values.length;
  Plotly.restyle("timeline", {y: [marginRows()], text: [view.margins || []]}, [0]);
  Plotly.restyle("timeline", {x: [marks], y: [marks.map(step => values[step])],
    "marker.color": [marks.map(step => unknown[step] ? c.unknown : c.low)]}, [3]);
  Plotly.restyle("timeline", {x: [above], y: [above.map(() => height)]}, [4]);
}

// The band over the scrubber: the lowest margin under each pixel, else the highest proxy. Grey
// stripes hang down where a step lies above every measured proxy.
function drawStrip() {
  const canvas = element("strip"), width = Math.max(canvas.clientWidth, 1), c = colours();
  canvas.width = width;
  const ink = canvas.getContext("2d"), {steps} = view.episode, {unknown} = view;
  const values = view.margins || proxyValues().map(single);
  const least = list => list.reduce((a, b) => Math.min(a, b), Infinity);
  const most = list => list.reduce((a, b) => Math.max(a, b));
  const low = least(values), span = most(values) - low || 1;
  for (let x = 0; x < width; x++) {
    const first = Math.floor(x * steps / width);
    const end = Math.max(first + 1, Math.ceil((x + 1) * steps / width));
    const under = values.slice(first, end), hidden = unknown.slice(first, end);
    const sure = under.filter((_, i) => !hidden[i]), striped = hidden.some(Boolean);
    ink.fillStyle = !view.margins ? mix(c.high, c.low, (most(under) - low) / span)
      : sure.length ? marginColour(least(sure), view.tables.n_values, c) : c.line;
    ink.fillRect(x, 0, 1, 14);
    if (!striped) continue;
    for (let y = 0; y < (sure.length ? 7 : 14); y++) {
      ink.fillStyle = (x + y) % 4 < 2 ? c.unknown : c.line;
      ink.fillRect(x, y, 1, 1);
    }
  }
}
