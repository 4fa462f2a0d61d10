"use strict";
// The explorer: episodes, margins, and the few steps worth a look.

const view = {study: null, tables: null, episode: null, totals: [], step: 0, margins: null,
  unknown: [], marks: [], lost: false, playing: false, film: null, names: [], limitTouched: false, pictures: new Map()};

async function begin() {
  try {
    view.study = await ask("/api/study");
  } catch (error) { return notice(error.message); }
  const {study} = view;
  speakOf(study.measured);
  const moments = Object.entries(study.moments).map(([phase, count]) => `${count} ${phase}`);
  const environment = shortName(study.environment);
  element("about").textContent = [environment, shortName(study.policy),
    moments.join(", ") + " moments measured", `n counts ${said.mistakes}`,
    "study " + study.name].join(" · ");
  element("about").title = study.path;
  document.title = `${environment} – safemargin explorer`;
  if (!study.episodes.length) {
    return notice("This study has no episodes yet; run safemargin collect on it first.");
  }
  if (study.estimates_left) {
    notice(`The study is not finished: ${study.estimates_left.toLocaleString("en")} estimates are `
      + "left. Margins come from the moments already measured for every n.");
  }
  for (const {name, text} of study.proxies) {
    const selected = name === study.default_proxy;
    element("proxy").append(make("option", {value: name, textContent: text, selected}));
  }
  layFilter();
  element("phases-help").textContent = Object.keys(study.moments).filter(phase =>
    study.moments[phase]).map(phase => PHASES[phase]).join("; ") + ".";
  element("above").hidden = !study.steps_above;
  element("above").textContent = study.steps_above ? `${study.steps_above}.` : "";
  await loadTables(study.default_proxy);
  listEpisodes();
  const place = fromAddress();
  await openEpisode(place.episode, place.step);
  if (place.hint) hint(`${place.hint}. Showing ${placeText()}`);
}

// An end means a loss only where there are lives; elsewhere the episode may have been won.
function layFilter() {
  const {episodes, has_lives} = view.study;
  const differ = new Set(episodes.map(each => each.ended === "terminated")).size > 1;
  element("only-lost").parentElement.hidden = !differ;
  element("only-lost-text").textContent = has_lives ? "only those that were lost"
    : "only those that ended on their own";
  element("only-lost").parentElement.title = has_lives ? "Lives that were lost"
    : "Episodes that the environment ended, won or lost; not those cut off by a time limit";
}

function notice(text) {
  element("notice").hidden = !text;
  element("notice").textContent = text;
}

// Say that a requested step or episode does not exist; hidden with the next step.
function hint(text) {
  element("hint").hidden = !text;
  element("hint").textContent = text ? text[0].toUpperCase() + text.slice(1) + "." : "";
}

const outlineOf = name => view.study.episodes.find(each => each.name === name);
const placeText = () => `step ${grouped(view.step)} of ${outlineOf(view.episode.name).title}`;

// #natural-17-0/812 in the address: an episode and a step of it, or what is wrong with them.
function fromAddress() {
  const [name, step] = location.hash.slice(1).split("/"), {start} = view.study;
  const found = outlineOf(name);
  if (!found) {
    return {...start, hint: name ? `there is no episode ${name} in this study` : "", lost: true};
  }
  const wrong = step === undefined ? "" : wrongStep(step, found);
  return {episode: name, step: step === undefined || wrong ? null : Number(step), hint: wrong};
}

function wrongStep(text, outline) {
  if (!/^\d+$/.test(text)) {
    return `a step is a whole number from 0 to ${grouped(outline.steps)}, not ${text || "nothing"}`;
  }
  return Number(text) <= outline.steps ? ""
    : `there is no step ${grouped(Number(text))} in ${outline.title}; it has `
      + grouped(outline.steps);
}

// -- margins ----------------------------------------------------------------------------------

const tolerance = () => toleranceAt(Number(element("tolerance").value), view.tables);
const table = () => view.tables.tables[Number(element("confidence").value)];
const limit = () => [0, ...view.tables.n_values][Number(element("limit").value)];
const proxyValues = () => view.episode.proxies[element("proxy").value];
const accepted = () => view.margins ? tolerance() : null;
const single = value => Array.isArray(value) ? value[0] : value;

async function loadTables(proxy) {
  view.tables = new MarginTables(await ask("/api/margins/" + encodeURIComponent(proxy)));
  const {tables} = view;
  for (const id of ["tolerance", "confidence", "limit"]) element(id).disabled = !tables.usable;
  const confidence = tables.tables.findIndex(each => each.confidence === tables.confidence);
  element("confidence").max = Math.max(tables.tables.length - 1, 0);
  element("confidence").value = Math.max(confidence, 0);
  element("tolerance").value = positionOf(tables.tolerance, tables);
  element("choice").textContent = tables.usable
    ? tables.choice[0].toUpperCase() + tables.choice.slice(1) + "." : "";
  element("limit").max = tables.n_values.length;
}

function computeMargins() {
  const {tables} = view, chosen = table(), level = tolerance();
  const known = Boolean(chosen && chosen.enough);
  const values = proxyValues();
  view.margins = known ? values.map(value => tables.at(chosen, value, level)) : null;
  view.unknown = values.map(value => known && tables.unknown(chosen, value));
  if (known && !view.limitTouched) {
    const sure = eligible().filter(step => !view.unknown[step]);
    const least = sure.reduce((few, step) => Math.min(few, view.margins[step]), Infinity);
    element("limit").value = Math.max(0, [0, ...tables.n_values].indexOf(least));
  }
  element("tolerance-text").textContent = show(level);
  element("confidence-text").textContent = chosen ? chosen.confidence : "–";
  element("limit-text").textContent = known ? limit() : "–";
  sayValue("tolerance", `a loss of ${show(level)}`);
  sayValue("confidence", chosen ? String(chosen.confidence) : "none");
  sayValue("limit", known ? `a margin of ${limit()} or less` : "no margins");
  const reason = (chosen && tables.tooLittle(chosen)) || tables.note || "the data allow no bound";
  element("margin-note").hidden = known;
  element("margin-note").textContent = known ? "" : `No margins: ${reason}. The steps with `
    + "the highest proxy are marked instead.";
  findMarks();
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

const beyond = each => each.steps_above === each.eligible_steps;

function listEpisodes() {
  const all = view.study.episodes, order = element("episode-order").value;
  const shown = all.filter(each => !element("only-lost").checked || each.ended === "terminated");
  if (order === "critical") {
    const lossOf = each => each.measured_loss ? each.measured_loss.mean : -Infinity;
    shown.sort((a, b) => lossOf(b) - lossOf(a) || b.eligible - a.eligible || Boolean(a.same_peak) - Boolean(b.same_peak)
      || beyond(a) - beyond(b) || b.peak_proxy - a.peak_proxy);
  }
  if (order === "reward") shown.sort((a, b) => a.total_reward - b.total_reward);
  element("episode-list").replaceChildren(...shown.map(episodeRow));
}

const OPENS_AT = "opens at its measured moment if that loses more than the tolerance, else at the "
  + "step with the lowest margin or the highest proxy";

function episodeRow(each) {
  const row = make("li", {onclick: () => openEpisode(each.name),
    title: `seed ${each.seed}; ${OPENS_AT}\n${PHASES[each.phase]}`},
  make("b", {textContent: each.title}), badges(each));
  const ends = {terminated: view.study.has_lives ? "lost" : "ended", truncated: "time limit",
    cut: "cut off"};
  const facts = `${grouped(each.steps)} steps · reward ${show(each.total_reward)}`;
  row.append(make("span", {className: "quiet", textContent: `${facts} · ${ends[each.ended]}`}));
  if (each.measured_loss) {
    row.append(make("span", {className: "quiet", textContent: `measured at step `
      + `${grouped(each.measured_loss.step)}: ${loses(roundTo(each.measured_loss.mean, 3))} on average`}));
  }
  if (each.joins) {
    const joined = `converges with ${outlineOf(each.joins).title}`;
    row.append(make("span", {className: "quiet", textContent: joined}));
  }
  row.dataset.name = each.name;
  row.classList.toggle("here", Boolean(view.episode) && each.name === view.episode.name);
  return row;
}

// The lowest margin of an episode, and whether it has steps about which nothing is known.
function badges(each) {
  const chosen = table(), {tables} = view, box = make("span", {className: "badges"});
  if (!chosen || !chosen.enough || tables.looks_at_n
    || tables.proxy !== view.study.default_proxy) return box;
  const margin = tables.at(chosen, each.peak_proxy, tolerance());
  if (!beyond(each)) box.append(badge(margin, tables.n_values));
  if (each.steps_above) {
    box.append(badge(0, tables.n_values, `${grouped(each.steps_above)} of `
      + `${grouped(each.eligible_steps)} steps lie above every measured proxy, so nothing is `
      + "promised there"));
  }
  return box;
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

// Poll how much of the episode is filmed until all of it is.
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

// -- controls ------------------------------------------------------------------------------------

function moveBy(steps) {
  pause();
  goTo(view.step + steps);
}

element("scrubber").oninput = event => { pause(); goTo(Number(event.target.value)); };
element("strip").onclick = event => {
  pause();
  goTo(event.offsetX / element("strip").clientWidth * view.episode.steps);
};
element("step").onchange = event => {
  const typed = event.target.value, wrong = wrongStep(typed, outlineOf(view.episode.name));
  pause();
  goTo(/^\d+$/.test(typed) ? Number(typed) : view.step);
  event.target.value = view.step;
  hint(wrong);
};
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

// After a click on a button, the space bar still plays and pauses.
document.addEventListener("click", event => {
  const button = event.target.closest("button");
  if (button && event.detail > 0) button.blur();
});

window.addEventListener("resize", () => { if (view.episode) drawStrip(); });
window.addEventListener("hashchange", async () => {
  const place = fromAddress();
  if (place.hint && view.episode && (place.lost || place.episode === view.episode.name)) {
    goTo(view.step);  // stay, and correct the address
  } else if (!view.episode || place.episode !== view.episode.name) {
    await openEpisode(place.episode, place.step);
  } else if (place.step !== null) goTo(place.step);
  if (place.hint) hint(`${place.hint}. Showing ${placeText()}`);
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
