"use strict";
// What the charts of report and explorer share.

function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["back", "card", "ink", "quiet", "line", "accent", "low", "middle", "high",
    "reward", "unknown", "nothing"];
  return Object.fromEntries(names.map(name => [name, style.getPropertyValue("--" + name).trim()]));
}

function baseLayout(more) {
  const c = colours();
  return Object.assign({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 12,
      color: c.quiet},
    margin: {l: 58, r: 14, t: 8, b: 36}, showlegend: false,
    modebar: {bgcolor: "rgba(0,0,0,0)", color: c.quiet, activecolor: c.ink},
    hoverlabel: {bgcolor: c.card, bordercolor: c.line, font: {color: c.ink}},
  }, more);
}

function axis(more) {
  const c = colours();
  const lines = {gridcolor: c.line, zerolinecolor: c.line, linecolor: c.line, ticks: ""};
  return Object.assign(lines, more);
}

// A chart's tools appear only under the mouse (style.css): they would cover titles.
const CONFIG = {displaylogo: false, responsive: true,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]};

// What a chart shows, for those who cannot see it: it is read as one picture with this text.
function summarise(id, text) {
  element(id).setAttribute("role", "img");
  element(id).setAttribute("aria-label", text);
}

// What the position of a slider means, instead of a bare number.
function sayValue(id, text) {
  element(id).setAttribute("aria-valuetext", text);
}

// Lines that lie close together: neighbours differ in colour and in dashes, on light and on dark.
const LINES = [["#3d8bd9", "solid"], ["#e08a00", "dash"], ["#1f9e74", "dot"], ["#cf5fa2", "dashdot"],
  ["#8274e8", "longdash"], ["#d9542b", "solid"], ["#8a8f2b", "dot"]];

function lineStyle(i) {
  const [color, dash] = LINES[i % LINES.length];
  return {color, dash, width: 2};
}

// A margin as a coloured pill; grey with a question mark where nothing is known: `unknown` is why.
function badge(margin, n_values, unknown = "") {
  if (unknown) {
    return make("span", {className: "badge unknown", textContent: "?", title: unknown});
  }
  const c = colours();
  const node = make("span", {className: "badge", textContent: margin, title: `margin ${margin}`});
  node.style.background = marginColour(margin, n_values, c);
  node.style.color = inkOn(node.style.background);
  return node;
}

// Black or white, whichever contrasts more: at least 4.5 : 1 on any colour.
function inkOn(background) {
  const linear = value => value <= 10.31475 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4;
  const [red, green, blue] = background.match(/\d+/g).map(Number).map(linear);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

// A line over a chart: moving it is far cheaper than drawing the chart again.
function placeCursor(line, chart, x) {
  const layout = chart._fullLayout;
  if (!layout || !layout.xaxis) { line.hidden = true; return; }
  const place = layout.xaxis.l2p(x);
  line.hidden = place < -1 || place > layout.xaxis._length + 1;
  line.style.left = chart.offsetLeft + layout.xaxis._offset + place + "px";
  line.style.top = chart.offsetTop + layout._size.t + "px";
  line.style.height = layout._size.h + "px";
}

// 'folder/worlds.py:make' is long enough as 'worlds.py:make'.
const shortName = text => text.includes(".py:") ? text.slice(text.lastIndexOf("/") + 1) : text;

const element = id => document.getElementById(id);

function make(tag, properties, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

async function ask(address, options) {
  let answer;
  try {
    answer = await fetch(address, options);
  } catch {  // nobody answers at all
    throw new Error("The explorer has stopped; run `safemargin explore` again.");
  }
  if (!answer.ok) {
    let text = answer.statusText;
    try { text = (await answer.json()).detail; } catch { /* no sentence came with it */ }
    throw new Error(typeof text === "string" ? text : "the server did not understand the request");
  }
  return answer.json();
}

// At most one call per frame of the screen, always with the latest values.
function calmly(work) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; work(); });
  };
}
