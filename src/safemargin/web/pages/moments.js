"use strict";
// The few steps of an episode worth a look, and what the study measured in it.

const APART = 20, MOST_MARKS = 60, MOST_UNKNOWN = 12, MOST_WITHOUT_MARGINS = 12;

// The steps that a study may measure: neither the opening nor the last steps.
function eligible() {
  const {opening, steps} = view.episode, last = steps - view.study.excluded_steps;
  const first = Math.min(opening, steps - 1);
  return Array.from({length: (last > first ? last : steps) - first}, (_, i) => first + i);
}

// Steps with a small margin, worst first, some distance apart; then those about which nothing is
// known, because their proxy lies above every measured one. Before them all comes the measured
// moment, if more is lost there than is accepted.
function findMarks() {
  const {episode} = view, levels = episode.measured.map(each => each.mean);
  const lost = Math.max(-Infinity, ...levels) > (accepted() || 0);
  view.lost = lost;
  view.marks = marksAfter(lost ? [episode.moment] : []);
}

function marksAfter(first) {
  const {margins, unknown} = view, values = proxyValues().map(single);
  const worse = (a, b) => values[b] - values[a] || a - b;
  if (!margins) {
    return apart(eligible().sort(worse), MOST_WITHOUT_MARGINS, first);
  }
  const low = eligible().filter(step => !unknown[step] && margins[step] <= limit());
  low.sort((a, b) => margins[a] - margins[b] || worse(a, b));
  const above = eligible().filter(step => unknown[step]).sort(worse);
  return [...apart(low, MOST_MARKS, first), ...apart(above, MOST_UNKNOWN)];
}

function apart(steps, most, first = []) {
  const chosen = [...first];
  for (const step of steps) {
    if (chosen.length >= most) break;
    if (chosen.every(other => Math.abs(other - step) >= APART)) chosen.push(step);
  }
  return chosen;
}

function listMarks() {
  const {marks, episode} = view;
  element("moment-count").textContent = marks.length;
  element("moment-help").textContent = helpText();
  const measured = episode.measured.length && !marks.includes(episode.moment);
  const rows = measured ? [episode.moment, ...marks] : marks;
  element("moment-list").replaceChildren(...rows.map(markRow));
}

function helpText() {
  const {margins, marks, unknown, study} = view;
  const first = view.lost
    ? "First the measured moment, where more is lost than you accept; then by the proxy. " : "";
  if (!margins) return `${first}The steps with the highest proxy, at least ${APART} steps apart.`;
  const above = eligible().filter(step => unknown[step]).length;
  const margin = limit() ? `${limit()} or less` : "0";
  const known = first + (marks.some(step => !unknown[step])
    ? `Margin ${margin}, worst first, at least ${APART} steps apart; without the random `
      + `opening and the last ${study.excluded_steps} steps.`
    : `No step has a margin of ${margin} at this tolerance and confidence.`);
  return above ? `${known} ${grouped(above)} of ${grouped(eligible().length)} steps lie above every `
    + "measured proxy, so nothing is promised there: they come last, with a question mark." : known;
}

function markRow(step) {
  const {margins, unknown, film, episode} = view;
  const pictured = film && !film.fault && film.taken === film.of;
  const row = make("li", {onclick: () => { pause(); goTo(step); }, title: "Go to this step"});
  row.dataset.step = step;
  row.classList.toggle("here", step === view.step);
  row.append(pictured ? make("img", {src: frameAddress(step), alt: "", loading: "lazy"})
    : make("span"));
  const text = make("span", {}, make("b", {textContent: `step ${grouped(step)}`}), make("br"),
    make("span", {className: "quiet", textContent: `proxy ${show(single(proxyValues()[step]))}`}));
  if (step === episode.moment && episode.measured.length) {
    const {measured} = episode, most = measured.reduce((a, b) => b.mean > a.mean ? b : a);
    text.append(make("br"), make("span", {className: "quiet measured",
      title: verdict(measured, accepted()),
      textContent: `measured: n = ${most.n} ${costsOf({...most, n: 1})}`}));
  }
  row.append(text);
  if (margins) row.append(badge(margins[step], view.tables.n_values, unknown[step] && UNKNOWN));
  return row;
}

// What the study measured, at the measured step; elsewhere a link to it.
function showMeasured() {
  const {episode, step} = view, {measured, moment} = episode, box = element("measured");
  box.hidden = !measured.length;
  if (!measured.length) return;
  if (step !== moment) {
    box.replaceChildren(make("button", {className: "link", onclick: () => { pause(); goTo(moment); },
      textContent: `the study measured step ${grouped(moment)} of this episode`}));
    return;
  }
  const most = Math.max(...measured.map(each => each.mean));
  box.replaceChildren(make("h3", {textContent: `Measured here: mean loss (${said.unit}) after n ${said.mistakes}`}),
    ...measured.map(each => lossBar(each, most, accepted())),
    make("p", {id: "measured-verdict", textContent: verdict(measured, accepted())}),
    make("p", {id: "measured-regret", hidden: !episode.regret, textContent: wrongness(episode.regret)}));
}

function jump(direction) {
  const ahead = view.marks.filter(step => (step - view.step) * direction > 0);
  ahead.sort((a, b) => (a - b) * direction);
  if (!ahead.length) return;
  pause();
  goTo(ahead[0]);
}
