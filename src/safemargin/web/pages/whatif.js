"use strict";
// What if: the losses of perturbed trials, and three of them played beside what happened.

const ROLES = ["best", "median", "worst"], ALL = ["real", ...ROLES];
const shown = {episode: null, step: 0, asked: 0, chosen: 0, data: null, n: null, takes: {},
  offset: 0, seconds: 0, playing: false};

const whatIfAddress = () => `/api/episodes/${shown.episode}/steps/${shown.step}/whatif`;
const isOpen = () => element("what-if-dialog").open;
const nameOf = role => role === "real" ? "what happened" : `${role} trial`;

function dotOf(role) {
  const c = colours();
  return {real: c.ink, best: c.reward, median: c.middle, worst: c.low}[role];
}

async function openWhatIf() {
  pause();
  const from = {episode: view.episode.name, step: view.step};
  Object.assign(shown, from, {data: null, n: null, takes: {}, offset: 0});
  const mine = ++shown.asked, began = Date.now();
  shown.chosen++;
  element("what-if-title").textContent =
    `What if the agent acts at random from step ${shown.step.toLocaleString("en")} on?`;
  element("what-if-state").textContent = "loading …";
  element("what-if-verdict").textContent = "";
  element("what-if-more").hidden = true;
  element("screens").replaceChildren();
  element("what-if-dialog").showModal();
  for (let method = "POST"; mine === shown.asked && isOpen(); method = "GET") {
    try {
      shown.data = await ask(whatIfAddress(), {method});
    } catch (error) {
      element("what-if-state").textContent = error.message;
      return;
    }
    if (mine !== shown.asked) return;
    shown.seconds = Math.round((Date.now() - began) / 1000);
    showLosses();
    if (shown.data.state !== "running") return;
    await new Promise(done => setTimeout(done, 600));
  }
}

// -- the distribution of losses ---------------------------------------------------------------

function showLosses() {
  const {data} = shown, {results} = data;
  element("what-if-state").textContent = stateText(data);
  const bar = element("what-if-progress");
  bar.hidden = data.state !== "running";
  bar.max = data.n_values.length;
  if (results.length) bar.value = results.length; else bar.removeAttribute("value");
  element("what-if-more").hidden = !results.length;
  element("what-if-verdict").textContent = data.state === "done" ? verdict(results, accepted()) : "";
  if (!results.length) return;
  drawLosses();
  layChips();
  if (shown.n === null && data.state === "done") chooseN(tellingN(results));
}

function stateText(data) {
  if (data.fault) return "These trials could not be run: " + data.fault;
  if (data.state === "running") {
    return `Running trials as the study would: ${data.results.length} of ${data.n_values.length} `
      + `values of n are done, ${shown.seconds} s …`;
  }
  const trials = data.results.reduce((count, each) => count + each.losses.length, 0);
  const from = data.stored ? "stored in the study" : "run just now, not written to the study";
  return `${trials.toLocaleString("en")} trials, ${from}. After n ${said.mistakes} the policy `
    + `continues; losses are in ${said.unit}, over at most ${view.study.horizon} steps.`;
}

function drawLosses() {
  const c = colours(), {data} = shown, {results, n_values} = data;
  const place = new Map(n_values.map((n, i) => [n, i]));
  const boxes = results.map(each => {
    const color = each.n === shown.n ? c.accent : c.quiet;
    return {type: "box", x: each.losses.map(() => place.get(each.n)), y: each.losses, width: 0.5,
      boxpoints: "all", jitter: 0.6, pointpos: 0, marker: {size: 4, color, opacity: 0.65},
      line: {width: 1, color}, fillcolor: "rgba(128,128,128,0.08)", hoveron: "points",
      text: each.losses.map(loses), hovertemplate: `n = ${each.n}: %{text}<extra></extra>`};
  });
  const means = {mode: "lines+markers", x: results.map(each => place.get(each.n)),
    y: results.map(each => each.mean), line: {color: c.low, width: 2}, marker: {size: 6},
    error_y: {type: "data", array: results.map(each => each.half_width || 0), color: c.low,
      thickness: 1},
    customdata: results.map(each =>
      each.exact ? "every sequence of actions" : `±${show(each.half_width)}`),
    text: results.map(each => `${ofMistakes(each.n)} ${costs(each.mean, null, each.n !== 1)}`),
    hovertemplate: "%{text} on average (%{customdata})<extra></extra>"};
  const level = tolerance(), last = results[results.length - 1], shapes = [];
  const annotations = [{x: place.get(last.n), y: last.mean, xanchor: "left", xshift: 6,
    yanchor: "bottom", yshift: 2, text: "mean", showarrow: false, font: {size: 11, color: c.low}}];
  if (view.margins) {
    shapes.push({type: "line", xref: "paper", x0: 0, x1: 1, y0: level, y1: level,
      line: {color: c.accent, width: 1, dash: "dash"}});
    annotations.push({xref: "paper", x: 0, y: level, xanchor: "left", yanchor: "bottom",
      text: "tolerance", showarrow: false, font: {size: 11, color: c.accent}});
  }
  const layout = baseLayout({height: 230, shapes, annotations, hovermode: "closest",
    xaxis: axis({tickvals: n_values.map((_, i) => i), ticktext: n_values.map(n => `n = ${n}`),
      range: [-0.6, n_values.length - 0.4], zeroline: false, fixedrange: true}),
    yaxis: axis({title: {text: "loss"}, zeroline: true})});
  summarise("losses", "The loss of every trial and their mean, for each n; the buttons below choose n.");
  Plotly.react("losses", [...boxes, means], layout, {...CONFIG, displayModeBar: false})
    .then(chart => {
      if (chart.wired) return;
      chart.wired = true;
      chart.on("plotly_click", event =>
        chooseN(shown.data.n_values[Math.round(event.points[0].x)]));
    });
}

function layChips() {
  const done = new Set(shown.data.results.map(each => each.n));
  const chips = shown.data.n_values.map(n => {
    const chip = make("button", {textContent: n === 1 ? mistakes(1) : n,
      disabled: !done.has(n), onclick: () => chooseN(n)});
    chip.setAttribute("role", "radio");
    chip.setAttribute("aria-checked", n === shown.n);
    return chip;
  });
  const lead = make("span", {className: "quiet", textContent: "Play trials with"});
  element("n-chips").replaceChildren(lead, ...chips);
}

// The smallest n whose mean loss breaks the tolerance; otherwise the n that loses most.
function tellingN(results) {
  const broken = view.margins && results.find(each => each.mean > tolerance());
  return (broken || results.reduce((a, b) => b.mean > a.mean ? b : a)).n;
}

// -- three trials beside what happened --------------------------------------------------------

async function chooseN(n) {
  if (!shown.data.results.some(each => each.n === n)) return;
  Object.assign(shown, {n, takes: {}, offset: 0});
  stopTrials();
  const mine = ++shown.chosen;
  drawLosses();
  layChips();
  layScreens(null);
  for (let method = "POST"; mine === shown.chosen && isOpen(); method = "GET") {
    let showing;
    try {
      showing = await ask(`${whatIfAddress()}/${n}`, {method});
    } catch (error) { return layScreens(error.message); }
    if (mine !== shown.chosen) return;
    const before = Object.keys(shown.takes).length;
    shown.takes = showing.takes;
    if (showing.fault) return layScreens(showing.fault);
    if (Object.keys(showing.takes).length !== before) layScreens(null);
    if (showing.state === "done") return playTrials();
    await new Promise(done => setTimeout(done, 400));
  }
}

function layScreens(fault) {
  const found = shown.data.results.find(each => each.n === shown.n);
  element("screens").replaceChildren(...ALL.map(role => {
    const take = shown.takes[role];
    const image = make("img", {alt: role, hidden: role !== "real" && !take});
    const tag = make("span", {className: "tag", hidden: true});
    const box = make("div", {className: "picture", id: "picture-" + role}, image, tag);
    const lost = take ? loses(take.loss) + (take.repeats ? "" : " (differs!)")
      : fault ? "" : "playing …";
    const caption = make("figcaption", {}, make("b", {textContent: nameOf(role)}),
      make("span", {className: "quiet", textContent: role === "real" ? "as recorded" : lost}));
    caption.style.setProperty("--dot", dotOf(role));
    const which = `trial ${found.roles[role] + 1} of ${found.losses.length}`;
    return make("figure", {title: role === "real" ? "" : which}, box, caption);
  }));
  element("screens").classList.toggle("unpictured", unpictured());
  if (fault) {
    element("screens").append(make("p", {className: "quiet", textContent: fault}));
  }
  element("what-if-transport").style.visibility = fault ? "hidden" : "";
  element("what-if-scrubber").max = Math.max(...ALL.map(lengthOf));
  drawCourses();
  showTrials();
}

function lengthOf(role) {
  if (role === "real") return Math.min(view.episode.steps - shown.step, view.study.horizon);
  return shown.takes[role] ? shown.takes[role].rewards.length : 0;
}

function drawCourses() {
  const real = view.episode.rewards.slice(shown.step, shown.step + view.study.horizon);
  const played = ROLES.filter(role => shown.takes[role]);
  // What happened is drawn last, broken: the lines below it show through.
  const traces = [...played.map(role => [role, shown.takes[role].rewards]), ["real", real]]
    .map(([role, rewards]) => {
      let total = 0;
      return {x: [0, ...rewards.map((_, i) => i + 1)], mode: "lines",
        y: [0, ...rewards.map(reward => total += reward)],
        line: role === "real" ? {color: dotOf(role), width: 2, dash: "4px,5px"}
          : {color: dotOf(role), width: {best: 5, median: 3.4, worst: 1.8}[role]},
        hovertemplate: nameOf(role) + " %{y:.4g}<extra></extra>"};
    });
  const random = {type: "rect", yref: "paper", x0: 0, x1: shown.n, y0: 0, y1: 1,
    fillcolor: colours().middle, opacity: 0.18, line: {width: 0}};
  const layout = baseLayout({height: 170, hovermode: "x unified", shapes: [random],
    xaxis: axis({title: {text: "steps after the moment", standoff: 4}, rangemode: "tozero",
      zeroline: false}),
    yaxis: axis({title: {text: "reward"}, zeroline: false})});
  summarise("courses", "Reward over time in the chosen trials, beside what really happened.");
  Plotly.react("courses", traces, layout, {...CONFIG, displayModeBar: false}).then(chart => {
    const place = () => placeCursor(element("course-cursor"), chart, shown.offset);
    if (!chart.wired) {
      chart.wired = true;
      chart.on("plotly_afterplot", place);
      chart.on("plotly_click", event => { stopTrials(); seek(event.points[0].x); });
    }
    place();
  });
}

const KEPT_TRIAL_PICTURES = 1500, trialPictures = new Map();

function trialPicture(role, offset) {
  const at = Math.min(offset, lengthOf(role)), version = `?v=${view.study.version}`;
  const address = role === "real"
    ? `/api/episodes/${shown.episode}/frames/${shown.step + at}${version}`
    : `${whatIfAddress()}/${shown.n}/${role}/${at}${version}`;
  if (!trialPictures.has(address)) {
    const image = new Image();
    image.src = address;
    trialPictures.set(address, image);
    if (trialPictures.size > KEPT_TRIAL_PICTURES) {
      trialPictures.delete(trialPictures.keys().next().value);
    }
  }
  return trialPictures.get(address);
}

const present = () => ALL.filter(role => role === "real" || shown.takes[role]);

function showTrials() {
  const {offset} = shown;
  element("what-if-scrubber").value = offset;
  sayValue("what-if-scrubber", offset === 1 ? "1 step later" : `${offset} steps later`);
  element("what-if-clock").textContent = offset === 1 ? "1 step later" : `${offset} steps later`;
  for (const role of present()) {
    const box = element("picture-" + role), length = lengthOf(role), take = shown.takes[role];
    if (!unpictured()) {
      box.querySelector("img").src = trialPicture(role, offset).src;
      for (let next = 1; next <= 8; next++) trialPicture(role, offset + next);
    }
    const over = offset >= length && length < view.study.horizon;
    const random = !over && Boolean(take) && offset < take.random_steps;
    box.classList.toggle("random", random);
    box.classList.toggle("over", over);
    const tag = box.querySelector(".tag");
    tag.hidden = !random && !over;
    tag.textContent = over ? `ended after ${length} step${length === 1 ? "" : "s"}` : "acting at random";
  }
  placeCursor(element("course-cursor"), element("courses"), offset);
}

function seek(offset) {
  shown.offset = Math.max(0, Math.min(offset, Number(element("what-if-scrubber").max)));
  showTrials();
}

// All four play in step and wait for one another's pictures.
let trialClock = null;
function playTrials() {
  if (shown.playing) return stopTrials();
  const longest = Number(element("what-if-scrubber").max);
  if (shown.offset >= longest) shown.offset = 0;
  shown.playing = true;
  element("what-if-play").textContent = "❚❚";
  const tick = () => {
    if (!shown.playing || !isOpen()) return stopTrials();
    const ready = unpictured()
      || present().every(role => trialPicture(role, shown.offset + 1).complete);
    if (ready) seek(shown.offset + 1);
    if (shown.offset >= longest) return stopTrials();
    trialClock = setTimeout(tick, ready ? 1000 / Number(element("speed").value) : 15);
  };
  tick();
}

function stopTrials() {
  shown.playing = false;
  clearTimeout(trialClock);
  element("what-if-play").textContent = "▶";
}

element("what-if").onclick = openWhatIf;
element("what-if-play").onclick = playTrials;
element("what-if-close").onclick = () => element("what-if-dialog").close();
element("what-if-dialog").addEventListener("close", () => {
  shown.asked++;
  shown.chosen++;
  stopTrials();
});
element("what-if-scrubber").oninput = event => { stopTrials(); seek(Number(event.target.value)); };
element("what-if-dialog").addEventListener("keydown", event => {
  const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  if (event.key === " " && !event.target.matches("button")) {
    event.preventDefault();
    playTrials();
  } else if (by && !event.target.matches("input")) {
    event.preventDefault();
    stopTrials();
    seek(shown.offset + by);
  }
});
