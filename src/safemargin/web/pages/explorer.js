"use strict";
// The explorer: which episode, which margins, and the few steps of it worth a look.

const APART = 20, MOST_MARKS = 60, MOST_WITHOUT_MARGINS = 12;
const view = {study: null, tables: null, episode: null, totals: [], step: 0, margins: null,
  marks: [], playing: false, film: null, names: [], limitTouched: false, pictures: new Map()};

async function begin() {
  try {
    view.study = await ask("/api/study");
  } catch (error) { return notice(error.message); }
  const {study} = view;
  const moments = Object.entries(study.moments).map(([phase, count]) => `${count} ${phase}`);
  const environment = shortName(study.environment);
  element("about").textContent = [environment, shortName(study.policy),
    moments.join(", ") + " moments measured", "study " + study.name].join(" · ");
  element("about").title = study.path;
  document.title = `${environment} – safemargin explorer`;
  if (!study.episodes.length) {
    return notice("There is no episode yet; run safemargin collect on the study first.");
  }
  if (study.estimates_left) {
    notice(`The study is not finished: ${study.estimates_left.toLocaleString("en")} estimates are `
      + "left. Margins come from the moments that are measured for every n.");
  }
  for (const {name, text} of study.proxies) {
    const selected = name === study.default_proxy;
    element("proxy").append(make("option", {value: name, textContent: text, selected}));
  }
  await loadTables(study.default_proxy);
  listEpisodes();
  await openEpisode(...fromAddress());
}

function notice(text) {
  element("notice").hidden = !text;
  element("notice").textContent = text;
}

// #natural-17-0/812 in the address: an episode and a step of it.
function fromAddress() {
  const [name, step] = location.hash.slice(1).split("/"), {start} = view.study;
  const known = view.study.episodes.some(each => each.name === name);
  if (!known) return [start.episode, start.step];
  return [name, step === undefined ? null : Number(step)];
}

// -- margins ----------------------------------------------------------------------------------

const tolerance = () => toleranceAt(Number(element("tolerance").value), view.tables);
const table = () => view.tables.tables[Number(element("confidence").value)];
const limit = () => [0, ...view.tables.n_values][Number(element("limit").value)];
const proxyValues = () => view.episode.proxies[element("proxy").value];
const single = value => Array.isArray(value) ? value[0] : value;

async function loadTables(proxy) {
  view.tables = new MarginTables(await ask("/api/margins/" + encodeURIComponent(proxy)));
  const {tables} = view;
  for (const id of ["tolerance", "confidence", "limit"]) element(id).disabled = !tables.usable;
  const confidence = tables.tables.findIndex(each => each.confidence === tables.confidence);
  element("confidence").max = Math.max(tables.tables.length - 1, 0);
  element("confidence").value = Math.max(confidence, 0);
  element("tolerance").value = positionOf(tables.tolerance, tables);
  element("limit").max = tables.n_values.length;
}

function computeMargins() {
  const {tables} = view, chosen = table(), level = tolerance();
  const known = Boolean(chosen && chosen.bounded);
  view.margins = known ? proxyValues().map(value => tables.at(chosen, value, level)) : null;
  if (known && !view.limitTouched) {
    const least = eligible().reduce((few, step) => Math.min(few, view.margins[step]), Infinity);
    element("limit").value = [0, ...tables.n_values].indexOf(least);
  }
  element("tolerance-text").textContent = show(level);
  element("confidence-text").textContent = chosen ? chosen.confidence : "–";
  element("limit-text").textContent = known ? limit() : "–";
  const reason = (chosen && chosen.notes[0]) || tables.note || "the data allow no bound";
  element("margin-note").hidden = known;
  element("margin-note").textContent = known ? "" : `No margins here: ${reason}. Marked are the `
    + "steps with the highest proxy instead.";
  findMarks();
}

// The steps that a study may measure: not the opening, nor the last ones, where it is over.
function eligible() {
  const {opening, steps} = view.episode, last = steps - view.study.excluded_steps;
  const first = Math.min(opening, steps - 1);
  return Array.from({length: (last > first ? last : steps) - first}, (_, i) => first + i);
}

// Steps with a small margin, the worst first, apart from one another.
function findMarks() {
  const {margins} = view, values = proxyValues().map(single);
  const chosen = eligible().filter(step => !margins || margins[step] <= limit());
  chosen.sort((a, b) => (margins ? margins[a] - margins[b] : 0) || values[b] - values[a] || a - b);
  view.marks = [];
  for (const step of chosen) {
    if (view.marks.length >= (margins ? MOST_MARKS : MOST_WITHOUT_MARGINS)) break;
    if (view.marks.every(other => Math.abs(other - step) >= APART)) view.marks.push(step);
  }
}

const update = calmly(() => {
  computeMargins();
  drawMargins();
  drawStrip();
  listMarks();
  listEpisodes();
  showStep();
});

// -- episodes ---------------------------------------------------------------------------------

const hasLives = () => view.study.episodes.some(each => each.life > 0);
const title = each => `${each.phase} ${each.index}` + (hasLives() ? ` · life ${each.life + 1}` : "");

function listEpisodes() {
  const all = view.study.episodes, lives = hasLives(), order = element("episode-order").value;
  const course = each => `${each.peak_proxy} ${each.total_reward}`;  // equal only for copies
  const first = new Map([...all].reverse().map(each => [course(each), each]));
  const isCopy = each => first.get(course(each)) !== each;
  const shown = all.filter(each => !element("only-lost").checked || each.ended === "terminated");
  if (order === "critical") {
    shown.sort((a, b) => b.eligible - a.eligible || isCopy(a) - isCopy(b)
      || b.peak_proxy - a.peak_proxy);
  }
  if (order === "reward") shown.sort((a, b) => a.total_reward - b.total_reward);
  const ends = {terminated: lives ? "lost" : "ended", truncated: "time limit", cut: "cut off"};
  const chosen = table(), {tables} = view;
  const graded = chosen && chosen.bounded && !tables.looks_at_n
    && tables.proxy === view.study.default_proxy;
  element("episode-list").replaceChildren(...shown.map(each => {
    const row = make("li", {title: `seed ${each.seed}; opens at its most critical step`,
      onclick: () => openEpisode(each.name)}, make("b", {textContent: title(each)}));
    if (graded) row.append(badge(tables.at(chosen, each.peak_proxy, tolerance()), tables.n_values));
    const facts = `${each.steps.toLocaleString("en")} steps · reward ${show(each.total_reward)}`;
    row.append(make("span", {className: "quiet", textContent: `${facts} · ${ends[each.ended]}`}));
    if (isCopy(each)) {
      const same = `same play as ${title(first.get(course(each)))}`;
      row.append(make("span", {className: "quiet", textContent: same}));
    }
    row.dataset.name = each.name;
    row.classList.toggle("here", Boolean(view.episode) && each.name === view.episode.name);
    return row;
  }));
}

async function openEpisode(name, step = null) {
  pause();
  try {
    view.episode = await ask("/api/episodes/" + name);
  } catch (error) { return notice(error.message); }
  const {episode} = view;
  Object.assign(view, {limitTouched: false, film: null, totals: [0]});
  for (const reward of episode.rewards) {
    view.totals.push(view.totals[view.totals.length - 1] + reward);
  }
  view.pictures.clear();
  element("scrubber").max = element("step").max = episode.steps;
  computeMargins();
  if (step === null || !(step >= 0 && step <= episode.steps)) {
    step = view.marks.length ? view.marks[0] : episode.opening;
  }
  view.step = step;
  drawTimeline();
  drawStrip();
  listMarks();
  listEpisodes();
  goTo(step);
  watchFilm(name);
}

// Ask how far the episode is filmed, until it is.
async function watchFilm(name) {
  while (view.episode.name === name) {
    let film;
    try {
      film = await ask(`/api/episodes/${name}/film`);
    } catch { return; }
    if (view.episode.name !== name) return;
    view.film = film;
    if (film.action_names.length && !view.names.length) {
      view.names = film.action_names;
      showScores();
    }
    if (film.fault) return noFrame(film.fault);
    if (film.taken === film.of) return listMarks();  // now with pictures
    await new Promise(done => setTimeout(done, film.ready ? 700 : 250));
  }
}

// -- marked moments ---------------------------------------------------------------------------

function listMarks() {
  const {margins, marks, film, episode} = view, values = proxyValues().map(single);
  const pictured = film && !film.fault && film.taken === film.of;
  element("moment-count").textContent = marks.length;
  element("moment-help").textContent =
    !margins ? "The steps with the highest proxy, apart from one another."
    : !marks.length ? `No step has a margin of ${limit()} or less at this tolerance and confidence.`
    : `Margin ${limit()} or less, the worst first, ${APART} or more steps apart; neither the random `
      + `opening nor the last ${view.study.excluded_steps} steps.`;
  element("moment-list").replaceChildren(...marks.map(step => {
    const row = make("li", {onclick: () => { pause(); goTo(step); }, title: "Go there"});
    row.dataset.step = step;
    row.classList.toggle("here", step === view.step);
    row.append(pictured ? make("img", {src: frameAddress(step), alt: "", loading: "lazy"})
      : make("span"));
    const facts = `proxy ${show(values[step])}` + (step === episode.moment ? " · measured" : "");
    row.append(make("span", {},
      make("b", {textContent: `step ${step.toLocaleString("en")}`}), make("br"),
      make("span", {className: "quiet", textContent: facts})));
    if (margins) row.append(badge(margins[step], view.tables.n_values));
    return row;
  }));
}

function jump(direction) {
  const ahead = view.marks.filter(step => (step - view.step) * direction > 0);
  ahead.sort((a, b) => (a - b) * direction);
  if (!ahead.length) return;
  pause();
  goTo(ahead[0]);
}

// -- hands ------------------------------------------------------------------------------------

function moveBy(steps) {
  pause();
  goTo(view.step + steps);
}

element("scrubber").oninput = event => { pause(); goTo(Number(event.target.value)); };
element("strip").onclick = event => {
  pause();
  goTo(event.offsetX / element("strip").clientWidth * view.episode.steps);
};
element("step").onchange = event => goTo(Number(event.target.value));
element("back").onclick = () => moveBy(-1);
element("forward").onclick = () => moveBy(1);
element("play").onclick = play;
element("next-mark").onclick = () => jump(1);
element("previous-mark").onclick = () => jump(-1);
element("tolerance").oninput = element("confidence").oninput = update;
element("limit").oninput = () => { view.limitTouched = true; update(); };
element("proxy").onchange = async event => {
  await loadTables(event.target.value);
  computeMargins();
  drawTimeline();
  update();
};
element("episode-order").onchange = element("only-lost").onchange = listEpisodes;
element("help-button").onclick = () => element("help").showModal();
element("help-close").onclick = () => element("help").close();

// A button that was clicked with the mouse shall not take the space bar away from playing.
document.addEventListener("click", event => {
  const button = event.target.closest("button");
  if (button && event.detail > 0) button.blur();
});

window.addEventListener("resize", () => { if (view.episode) drawStrip(); });
window.addEventListener("hashchange", () => {
  const [name, step] = fromAddress();
  if (!view.episode || name !== view.episode.name) openEpisode(name, step);
  else if (step !== null) goTo(step);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (!view.episode) return;
  drawTimeline();
  update();
});

document.addEventListener("keydown", event => {
  if (!view.episode || event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.querySelector("dialog[open]")) return;
  if (event.target.matches("select, input[type=number]")) return;
  if (event.target.matches("aside input") && event.key.startsWith("Arrow")) return;
  const far = event.shiftKey ? 10 : 1;
  const keys = {
    ArrowLeft: () => moveBy(-far), ArrowRight: () => moveBy(far), " ": play,
    n: () => jump(1), p: () => jump(-1), w: () => element("what-if").click(),
    Home: () => goTo(0), End: () => goTo(view.episode.steps),
    "?": () => element("help").showModal(),
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
