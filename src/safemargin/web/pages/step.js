"use strict";
// One step of an episode: its picture, its numbers, its action scores.

const frameAddress = step =>
  `/api/episodes/${view.episode.name}/frames/${step}?v=${view.study.version}`;

function goTo(step) {
  view.step = Math.max(0, Math.min(view.episode.steps, Math.round(step)));
  history.replaceState(null, "", `#${view.episode.name}/${view.step}`);
  hint("");
  showStep();
  showFrame();
}

function showStep() {
  const {episode, step} = view, ended = step >= episode.steps;
  element("scrubber").value = step;
  sayValue("scrubber", `step ${step} of ${episode.steps}`);
  if (document.activeElement !== element("step")) element("step").value = step;
  showMargin(ended);
  showFacts(ended);
  showMeasured();
  const tags = [
    step < episode.opening ? "random opening" : "",
    step === episode.moment ? "measured by the study" : "",
    ended ? "the end" : "",
  ].filter(Boolean);
  element("frame-tag").hidden = !tags.length;
  element("frame-tag").textContent = tags.join(" · ");
  element("what-if").disabled = ended;
  for (const row of element("moment-list").children) {
    row.classList.toggle("here", Number(row.dataset.step) === step);
  }
  showScores();
  placeCursor(element("cursor"), element("timeline"), step);
}

function showMargin(ended) {
  const margin = view.margins && !ended ? view.margins[view.step] : null;
  const unknown = !ended && view.unknown[view.step];
  const {n_values} = view.tables, largest = n_values[n_values.length - 1];
  element("margin").textContent = unknown ? "?" : margin === null ? "–" : margin;
  element("margin").style.color = unknown ? "var(--unknown)"
    : margin === null ? "" : margin <= limit() ? "var(--low)" : "var(--ink)";
  if (unknown || margin === null) {
    element("margin-text").textContent =
      unknown ? UNKNOWN : ended ? "the episode has ended" : "no margin";
    return;
  }
  const actions = margin === largest ? `${said.mistakes} or more`
    : margin === 1 ? said.mistake : said.mistakes;
  const sure = Math.round(table().confidence * 1000) / 10;
  const value = proxyValues()[view.step], level = tolerance();
  const here = Array.isArray(value) ? null : view.tables.plateaus(table(), value)
    .find(part => part.from <= level && level < part.to);
  const around = here ? `; the same from ${show(here.from)}`
    + (here.to === Infinity ? " on" : ` to ${show(here.to)}`) : "";
  element("margin-text").textContent =
    `${actions} affordable, within a loss of ${show(level)}${around}, with ${sure} % confidence`;
}

function showFacts(ended) {
  const {episode, step} = view;
  const facts = [["step", `${step.toLocaleString("en")} of ${episode.steps.toLocaleString("en")}`]];
  if (!ended) {
    for (const each of view.study.proxies) {
      facts.push([each.text, show(single(episode.proxies[each.name][step]))]);
    }
    facts.push(["reward at this step", show(episode.rewards[step])]);
  }
  facts.push(["reward so far", show(view.totals[step])]);
  element("facts").replaceChildren(...facts.flatMap(([name, value]) => [
    make("dt", {textContent: name}), make("dd", {textContent: value, title: value}),
  ]));
}

// -- action scores ----------------------------------------------------------------------------

const SCORE_TITLES = {logits: "Action probabilities", q: "Action values",
  gaussian: "Action means", actions: "Action"};

function showScores() {
  const {episode} = view, here = Math.min(view.step, episode.steps - 1);
  element("scores-title").textContent = SCORE_TITLES[view.study.score_kind];
  if (!episode.scores) {
    const text = "too many scores to show";
    element("scores").replaceChildren(make("p", {className: "quiet small", textContent: text}));
    return;
  }
  const taken = episode.actions[here], first = view.study.first_action;
  element("scores").replaceChildren(...scoreRows(episode.scores[here]).map((row, i) => {
    const fill = make("div", {className: "fill"});
    fill.style.left = 100 * row.from + "%";
    fill.style.width = 100 * row.share + "%";
    const isTaken = Array.isArray(taken) ? String(taken) === String(view.study.joint_actions[i] ?? "none")
      : taken - first === i;
    return make("div",
      {className: "score" + (isTaken ? " taken" : ""),
        title: `${row.name}: ${row.hover}${isTaken ? " – taken" : ""}`},
      make("span", {className: "name", textContent: row.name}),
      make("div", {className: "track"}, fill),
      make("span", {className: "value", textContent: row.text}));
  }));
}

// The scores of one step as bars: where each begins and how long it is.
function scoreRows(raw) {
  const kind = view.study.score_kind, discrete = kind === "q" || kind === "logits";
  const first = view.study.first_action;
  const joint = view.study.joint_actions;  // String, not join: an action may have rows and columns
  const nameOf = i => joint.length ? `action ${joint[i]}`
    : view.names[i] || (discrete ? `action ${first + i}` : `dimension ${i}`);
  if (kind === "logits") {
    const top = Math.max(...raw), weights = raw.map(value => Math.exp(value - top));
    const all = weights.reduce((a, b) => a + b);
    return weights.map((value, i) => ({name: nameOf(i), from: 0, share: value / all,
      text: (100 * value / all).toFixed(1) + " %", hover: `logit ${show(raw[i])}`}));
  }
  const half = raw.length / 2, means = kind === "gaussian" ? raw.slice(0, half) : raw;
  const ends = discrete ? means : [0, ...means];  // values are compared, actions have a zero
  const low = Math.min(...ends), span = Math.max(...ends) - low || 1;
  return means.map((value, i) => {
    const zero = discrete ? -0.04 : -low / span, end = (value - low) / span;
    const deviation = kind === "gaussian" ? ` ± ${show(Math.exp(raw[half + i]))}` : "";
    return {name: nameOf(i), from: Math.max(0, Math.min(zero, end)),
      share: Math.min(1, Math.abs(end - zero)), text: show(value), hover: show(value) + deviation};
  });
}

// -- pictures ---------------------------------------------------------------------------------

const KEPT_PICTURES = 400;

function picture(step) {
  if (!view.pictures.has(step)) {
    const image = new Image();
    image.src = frameAddress(step);
    view.pictures.set(step, image);
    if (view.pictures.size > KEPT_PICTURES) {
      view.pictures.delete(view.pictures.keys().next().value);
    }
  }
  return view.pictures.get(step);
}

const unpictured = () => Boolean(view.film && view.film.fault);

function showFrame() {
  if (unpictured()) return;
  const {step} = view, name = view.episode.name, image = picture(step);
  const put = () => {
    if (view.step !== step || view.episode.name !== name) return;
    element("frame").src = image.src;
    element("frame").hidden = false;
    element("no-frame").hidden = true;
  };
  if (image.complete && image.naturalWidth) put();
  else image.decode().then(put, () => { view.pictures.delete(step); whetherEnded(); });
  const last = Math.min(step + (view.playing ? 12 : 2), view.episode.steps);
  for (let next = step + 1; next <= last; next++) picture(next);
}

// If pictures fail to load, the server may have stopped.
async function whetherEnded() {
  try {
    await ask(`/api/episodes/${view.episode.name}/film`);
  } catch (error) { notice(error.message); }
}

function noFrame(text) {
  element("frame").hidden = true;
  element("no-frame").hidden = false;
  element("no-frame").textContent = text;
}

let clock = null;
function play() {
  if (view.playing) return pause();
  if (view.step >= view.episode.steps) goTo(0);
  view.playing = true;
  element("play").textContent = "❚❚";
  const tick = () => {
    if (!view.playing) return;
    const waits = !unpictured() && !picture(view.step + 1).complete;
    if (!waits) goTo(view.step + 1);
    if (view.step >= view.episode.steps) return pause();
    clock = setTimeout(tick, waits ? 15 : 1000 / Number(element("speed").value));
  };
  tick();
}

function pause() {
  view.playing = false;
  clearTimeout(clock);
  element("play").textContent = "▶";
}
