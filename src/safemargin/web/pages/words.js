"use strict";
// Sentences shared by report and explorer: what mistakes cost, what is not known.

// Which mistakes a study measures, and what they cost; `speakOf` sets what it is about.
let said = {mistakes: "random actions", mistake: "random action", unit: "discounted reward"};

const mistakes = n => `${n} ${n === 1 ? said.mistake : said.mistakes}`;

function speakOf(measured) {
  said = measured;
  for (const name of ["mistakes", "unit"]) {
    for (const each of document.querySelectorAll(`.said-${name}`)) each.textContent = said[name];
  }
  const counted = document.getElementById("margin-box"), chips = document.getElementById("n-chips");
  if (counted) counted.title = `How many ${said.mistakes} the agent can afford at this step`;
  if (chips) chips.setAttribute("aria-label", `Number of ${said.mistakes}`);
}

const UNKNOWN = "above every measured proxy, so nothing is promised";

const TOO_LITTLE = "too little data at this confidence";

const PHASES = {
  natural: "natural: one step of the episode was drawn at random, so it is typical of what the agent meets",
  spread: "spread: the step was chosen so that the measured proxies cover a wide range",
  seed: "seed: run for this page, not part of the study",
};

const grouped = number => number.toLocaleString("en");
const ofMistakes = n => n === 1 ? `One ${said.mistake}` : mistakes(n);

// 'costs 0.87 ± 0.1', 'gain 0.68', 'cost nothing': never a negative loss.
function costs(mean, half = null, many = false) {
  const size = roundTo(Math.abs(mean), 3), s = many ? "" : "s";
  const within = half ? ` ± ${show(roundTo(half, 2))}` : "";
  if (size < 1e-9) return `cost${s} nothing`;
  return `${mean < 0 ? "gain" : "cost"}${s} ${show(size)}${within}`;
}

// Where the agent itself is wrong: what another action would bring, and what is at stake.
function wrongness(found) {
  if (!found) return "";
  const about = {exact: "", sampled: " at least", averaged: " about"}[found.how];
  const gain = found.regret < 1e-9 ? "No other single action is better than the agent's own"
    : `Another action would bring${about} ${show(roundTo(found.regret, 3))} more than the agent's own`;
  return `${gain}; the best is ${show(roundTo(found.stakes, 3))} above the average one (stakes).`;
}

// The loss of one trial.
const loses = loss => Math.abs(loss) < 1e-9 ? "loses nothing"
  : `${loss < 0 ? "gains" : "loses"} ${show(Math.abs(loss))}`;

const costsOf = each => costs(each.mean, each.half_width, each.n !== 1);

// What measured losses mean for somebody who accepts a loss of `level`; null: no level chosen.
function verdict(results, level) {
  if (!results.length) return "";
  const at = level === null ? -1 : results.findIndex(each => each.mean > level);
  if (at < 0) {
    const most = results.reduce((a, b) => b.mean > a.mean ? b : a);
    const within = level === null ? "." : `: within the ${show(level)} you accept.`;
    const others = results.length > 1 ? " and no other n costs more" : "";
    return `${ofMistakes(most.n)} ${costsOf(most)} on average${others}${within}`;
  }
  const found = results[at], sure = found.mean - (found.half_width || 0) > level;
  const beside = results[at - 1] || results[at + 1];
  return `${ofMistakes(found.n)} ${costsOf(found)} on average, ${sure ? "" : "probably "}more `
    + `than the ${show(level)} you accept`
    + (beside ? `; ${beside.n} ${costsOf(beside)}.` : ".");
}

// One mean loss as a bar; `most` is the loss of the longest bar, `level` the accepted loss.
function lossBar(each, most, level) {
  const fill = make("div", {className: "fill"}), half = each.half_width;
  fill.style.width = 100 * Math.max(each.mean, 0) / Math.max(most, 1e-9) + "%";
  const broken = level !== null && each.mean > level;
  return make("div", {className: "loss" + (broken ? " broken" : ""),
    title: `${ofMistakes(each.n)} ${costsOf(each)} on average`},
  make("span", {className: "quiet", textContent: `n = ${each.n}`}),
  make("div", {className: "track"}, fill),
  make("span", {textContent: show(roundTo(each.mean, 3))
    + (half ? ` ± ${show(roundTo(half, 2))}` : "")}));
}
