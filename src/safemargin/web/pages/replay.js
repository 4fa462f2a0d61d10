"use strict";
// A log, entry by entry: the list, the selected entry, and the fleet at that time.

const view = { all: [], names: new Map(), shown: [], at: -1, playing: false, timer: 0, recorded: null };
const ICONS = {
  call: "▲", release: "△", taken: "◆", action: "›", "handed-back": "◇", refused: "⊘", joined: "+", back: "+",
  left: "−", lost: "✕", died: "✕", dismissed: "−", "stop-due": "□", stopped: "■", absent: "…", drift: "≈",
  acknowledged: "✓", snoozed: "☾", woken: "☀", "handed-over": "⇄", "server-started": "●", "server-stopped": "○",
};
// What the actions of each agent are called, wherever the log names them: 'agent action' → name. Older
// logs name only the actions that were proposed or taken.
function namesOf(entries) {
  const names = new Map();
  for (const { agent, details } of entries) {
    (details.action_names || []).forEach((name, index) => names.set(`${agent} ${index + (details.first_action ?? 0)}`, name));
    if (details.proposed_name) names.set(`${agent} ${details.proposed}`, details.proposed_name);
    if (details.action_name) names.set(`${agent} ${details.action}`, details.action_name);
  }
  return names;
}

const actionName = (agent, action) => view.names.get(`${agent} ${action}`) || (Number.isInteger(action) ? `action ${action}` : action);

const LONGEST_PAUSE = 1500, ROWS = 400;

// Returns the log's name once view.all holds its entries. A page that was written as a file has the log inside.
async function read() {
  if (byId("recorded")) {
    view.recorded = JSON.parse(byId("recorded").textContent);
    view.all = view.recorded.entries;
    return view.recorded.log;
  }
  let after = 0, total = 1, name = "";
  while (view.all.length < total) {
    const answer = await (await fetch(`/api/entries?after=${after}`)).json();
    total = answer.total;
    name = answer.log;
    view.all.push(...answer.entries);
    if (!answer.entries.length) break;
    after = view.all[view.all.length - 1].id;
  }
  return name;
}

async function begin() {
  const name = await read();
  view.names = namesOf(view.all);
  const agents = [...new Set(view.all.map(entry => entry.agent).filter(Boolean))].sort();
  byId("only").append(...agents.map(agent => make("option", "", agent)));
  const count = kind => view.all.filter(entry => entry.kind === kind).length;
  const some = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;
  byId("summary").textContent = [
    name, `${view.all.length} entries, none altered` + (view.recorded ? ` when this page was written on ${new Date(view.recorded.written * 1000).toLocaleDateString()}` : ""), some(agents.length, "agent"), some(count("call"), "call"),
    some(count("taken"), "take-over"), some(count("action"), "human action"),
  ].join(" · ");
  byId("only").addEventListener("change", choose);
  byId("scrubber").addEventListener("input", event => { pause(); go(Number(event.target.value)); });
  byId("play").addEventListener("click", toggle);
  document.addEventListener("keydown", keys);
  choose();
}

function choose() {
  const only = byId("only").value;
  view.shown = view.all.filter(entry => !only || entry.agent === only || entry.agent === null);
  byId("scrubber").max = Math.max(0, view.shown.length - 1);
  const first = view.shown.findIndex(entry => entry.kind === "call" || entry.kind === "taken");
  go(Math.max(0, first));
}

function keys(event) {
  if (event.target.matches("select")) return;
  if (event.key === "ArrowRight" || event.key === "ArrowLeft") { pause(); go(view.at + (event.key === "ArrowRight" ? 1 : -1)); }
  else if (event.key === "Home") go(0);
  else if (event.key === "End") go(view.shown.length - 1);
  else if (event.key === " ") toggle();
  else if (event.key === "c") { const next = view.shown.findIndex((entry, index) => index > view.at && entry.kind === "call"); if (next > 0) go(next); }
  else return;
  event.preventDefault();
}

function toggle() {
  if (view.playing) return pause();
  view.playing = true;
  byId("play").textContent = "pause";
  advance();
}

function pause() {
  view.playing = false;
  clearTimeout(view.timer);
  byId("play").textContent = "play";
}

function advance() {
  if (!view.playing) return;
  if (view.at >= view.shown.length - 1) return pause();
  const speed = Number(byId("speed").value);
  const gap = 1000 * (view.shown[view.at + 1].time - view.shown[view.at].time) / speed;
  view.timer = setTimeout(() => { go(view.at + 1); advance(); }, Math.min(LONGEST_PAUSE, Math.max(20, gap)));
}

function go(index) {
  if (!view.shown.length) return;
  view.at = Math.min(Math.max(0, index), view.shown.length - 1);
  byId("scrubber").value = view.at;
  byId("scrubber").setAttribute("aria-valuetext", `entry ${view.at + 1} of ${view.shown.length}: ${view.shown[view.at].text}`);
  byId("clock").textContent = `${view.at + 1} of ${view.shown.length}`;
  showList();
  showEntry(view.shown[view.at]);
}

function showList() {
  const first = Math.max(0, Math.min(view.at - ROWS / 2, view.shown.length - ROWS)), list = byId("list");
  list.replaceChildren(...view.shown.slice(first, first + ROWS).map((entry, offset) => {
    const line = make("li", first + offset === view.at ? "here" : "");
    line.dataset.kind = entry.kind;
    line.append(make("time", "", clock(entry.time)), make("span", "icon", ICONS[entry.kind] || "·"), make("span", "", entry.text));
    line.addEventListener("click", () => { pause(); go(first + offset); });
    return line;
  }));
  list.querySelector(".here")?.scrollIntoView({ block: "nearest" });
}

function showEntry(entry) {
  byId("entry-title").textContent = entry.text;
  byId("entry-time").textContent = new Date(entry.time * 1000).toLocaleString();
  const picture = byId("entry-picture");
  picture.hidden = !entry.pictured;
  if (entry.pictured) picture.src = view.recorded ? view.recorded.pictures[entry.id] : `/api/entries/${entry.id}/picture`;
  const details = entry.details, facts = [];
  const add = (name, value) => { if (value !== undefined && value !== null && value !== "") facts.push(make("dt", "", name), make("dd", "", String(value))); };
  add("entry", entry.id);
  add("agent", entry.agent);
  add("person", entry.person);
  if (entry.step !== null) add("episode, step", `${entry.episode}, ${entry.step}`);
  add("margin", details.margin);
  add("proxy", typeof details.proxy === "number" ? details.proxy.toPrecision(4) : null);
  add("the agent's choice", details.proposed === undefined || details.proposed === null ? null : actionName(entry.agent, details.proposed));
  if (entry.kind === "action") add("action taken", actionName(entry.agent, details.action) + (details.overruled ? " (overruled)" : ""));
  if (entry.kind === "server-started") for (const [name, value] of Object.entries(details)) add(name.replaceAll("_", " "), value);
  byId("facts").replaceChildren(...facts);
  showScores(entry.agent, details);
  showFleet(entry.id);
}

function showScores(agent, details) {
  const scores = details.scores || [], finite = scores.filter(score => score !== null);
  const low = Math.min(0, ...finite), range = Math.max(0, ...finite) - low || 1;
  const first = details.first_action ?? 0, discrete = Number.isInteger(details.proposed ?? details.action ?? 0);
  byId("scores").replaceChildren(...scores.map((score, index) => {
    const row = make("div", "score"), track = make("div", "track"), fill = make("div", "fill");
    const action = first + index, wanted = action === details.proposed;
    row.classList.toggle("taken", action === details.action);
    fill.style.left = `${100 * (Math.min(score ?? 0, 0) - low) / range}%`;
    fill.style.width = `${100 * Math.abs(score ?? 0) / range}%`;
    track.append(fill);
    row.append(make("span", "name", (wanted ? "▸ " : "") + (discrete ? actionName(agent, action) : `score ${index}`)), track, make("span", "value", score === null ? "–" : score.toPrecision(3)));
    return row;
  }));
}

function showFleet(until) {
  const states = new Map();
  for (const entry of view.all) {
    if (entry.id > until) break;
    if (entry.kind === "server-started") for (const [name] of states) states.set(name, { ...states.get(name), gone: "lost" });
    if (!entry.agent) continue;
    const state = states.get(entry.agent) || {};
    if (entry.kind === "call") state.calls = true;
    if (entry.kind === "release") state.calls = false;
    if (entry.kind === "taken") state.by = entry.person;
    if (entry.kind === "handed-over" && entry.details.to) state.by = entry.details.to;
    if (["handed-back", "stop-due", "stopped"].includes(entry.kind)) state.by = "";
    if (["lost", "died", "left"].includes(entry.kind)) state.gone = entry.kind;
    if (["joined", "back"].includes(entry.kind)) state.gone = "";
    if (entry.kind === "dismissed") states.delete(entry.agent);
    else states.set(entry.agent, state);
  }
  byId("then").replaceChildren(...[...states].sort().map(([name, state]) => {
    const kind = state.gone || (state.by ? "theirs" : state.calls ? "calls" : "well");
    const chip = make("span", "chip", state.gone ? `${name} · ${state.gone}` : name + { calls: " ▲", theirs: ` ◆ ${state.by}`, well: "" }[kind]);
    chip.dataset.state = kind;
    return chip;
  }));
}

function clock(time) {
  return new Date(time * 1000).toLocaleTimeString([], { hour12: false });
}
