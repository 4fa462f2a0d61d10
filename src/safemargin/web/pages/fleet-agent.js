"use strict";
// The selected agent: picture, scores, timeline, history.

function look(index) {
  view.looks = index;
  view.seen = view.timeline = null;
  releaseKeys();
  say({ do: "look", agent: index });
  byId("agent").hidden = index === null;
  byId("nothing").hidden = index !== null;
  for (const agent of view.agents) agent.dirty = true;
  view.unsorted = true;
  sortedAt = 0;
  byId("pad").dataset.for = "";
  if (index !== null) {
    showEntries();
    showAgent();
  }
}

function showAgent() {
  const agent = view.agents[view.looks];
  if (!agent) return;
  const state = stateOf(agent), mine = state === "mine";
  set(byId("agent-name"), "textContent", agent.name);
  set(byId("agent-state"), "textContent", stateText(agent));
  set(byId("agent-state").dataset, "state", state);
  byId("agent").classList.toggle("mine", mine);
  const picture = byId("agent-picture");
  picture.hidden = !agent.picture;
  byId("no-picture").hidden = Boolean(agent.picture);
  if (agent.picture && picture.getAttribute("src") !== agent.picture) picture.src = agent.picture;
  const known = agent.step !== null && agent.step !== undefined;
  set(byId("margin"), "textContent", known ? String(agent.margin) : "–");
  set(byId("margin").dataset, "level", known ? levelOf(agent.margin) : "high");
  const wrong = agent.margin === 1 ? "mistake" : "mistakes";
  set(byId("margin-text"), "textContent", known
    ? `${wrong} affordable · episode ${agent.episode}, step ${agent.step}`
      + (agent.proxy === null ? "" : ` · ${view.about.proxy || "proxy"} ${agent.proxy.toPrecision(4)}`)
    : "nothing reported yet");
  set(byId("why"), "textContent", agent.status === "live" ? view.seen?.why || agent.why || "" : `${agent.status}: ${agent.reason}`);
  const held = Boolean(agent.control) && agent.control === view.me, gone = agent.status !== "live";
  byId("take").hidden = held;
  byId("take").disabled = gone;
  byId("give").hidden = !held;
  byId("dismiss").hidden = !gone || agent.dismissed;
  byId("seen").hidden = !agent.calling || Boolean(agent.seen_by) || gone;
  byId("snooze").hidden = gone && !snoozed(agent);
  set(byId("snooze").firstChild, "textContent", snoozed(agent) ? "Wake " : "Snooze ");
  byId("snooze").title = snoozed(agent) ? "It may call again" : "It does not call for ten minutes";
  byId("hand-over").hidden = !view.people.some(name => name !== view.me)
    || !(held || (agent.calling && (!agent.seen_by || agent.seen_by === view.me)));
  set(byId("control-note"), "textContent", held
    ? (gone ? "you have it, and still will when it comes back" : agent.waiting ? "waits for your action" : "")
    : gone && agent.control ? `${agent.control} has it`
    : agent.control ? `${agent.control} has had it for ${span(now() - agent.held_since)}; Shift+T takes it from them` : "");
  showPad(agent, mine);
  showScores(agent);
  drawTimeline();
}

const snoozed = agent => agent.snoozed_until > now();

function showPeople() {
  const select = byId("hand-over"), others = view.people.filter(name => name !== view.me);
  const first = make("option", "", "Hand over to …");
  first.value = "";
  select.replaceChildren(first, ...others.map(name => make("option", "", name)));
  if (view.agents[view.looks]) view.agents[view.looks].dirty = true;
}

function actionName(agent, index) {
  return agent.action_names[index] || `action ${index + agent.first_action}`;
}

function showScores(agent) {
  const box = byId("scores"), seen = view.seen;
  const scores = seen?.scores;
  if (!scores) {
    box.replaceChildren(make("p", "quiet small", seen ? "this agent reports no scores" : ""));
    return;
  }
  if (box.children.length !== scores.length || box.firstChild.className === "quiet small") {
    box.replaceChildren(...scores.map(() => {
      const row = make("div", "score"), track = make("div", "track");
      track.append(make("div", "fill"));
      row.append(make("span", "name"), track, make("span", "value"));
      return row;
    }));
  }
  const finite = scores.filter(score => score !== null);
  const low = Math.min(0, ...finite), high = Math.max(0, ...finite), range = high - low || 1;
  const discrete = !agent.dimensions;
  scores.forEach((score, index) => {
    const row = box.children[index], [name, track, value] = row.children;
    const chosen = discrete && seen.proposed === index + agent.first_action;
    row.classList.toggle("taken", chosen);
    set(name, "textContent", (chosen ? "▸ " : "") + (discrete ? actionName(agent, index) : `score ${index}`));
    const from = (Math.min(score ?? 0, 0) - low) / range, to = (Math.max(score ?? 0, 0) - low) / range;
    track.firstChild.style.left = `${100 * from}%`;
    track.firstChild.style.width = `${100 * (to - from)}%`;
    set(value, "textContent", score === null ? "not finite" : score.toPrecision(3));
  });
  set(byId("scores-note"), "textContent", discrete ? "▸ the agent's choice" : "");
}

function showEntries() {
  const agent = view.agents[view.looks];
  if (!agent) return;
  const list = byId("entries");
  const mine = view.entries.filter(entry => entry.agent === agent.name).slice(-40).reverse();
  list.replaceChildren(...mine.map(entry => {
    const line = make("li"), time = make("time", "", new Date(entry.time * 1000).toLocaleTimeString([], { hour12: false }));
    line.append(time, entry.text.replace(agent.name + " ", ""));
    return line;
  }));
}

// -- the timeline ---------------------------------------------------------------------------

let hovered = null;
function beginTimeline() {
  const canvas = byId("timeline");
  canvas.addEventListener("pointermove", event => { hovered = event.offsetX; drawTimeline(); });
  canvas.addEventListener("pointerleave", () => { hovered = null; drawTimeline(); });
}

function drawTimeline() {
  const line = view.timeline;
  const { pen, width, height } = fit(byId("timeline"));
  if (!line || !line.steps.length) return;
  const shown = 450, first = Math.max(0, line.steps.length - shown), count = line.steps.length - first;
  const left = 26, right = width - 4, wide = (right - left) / shown;
  const x = index => right - (count - index) * wide;
  const top = 6, middle = height * 0.62, bottom = height - 14, steps = levels();
  const y = margin => middle - 4 - heightOf(margin, steps) * (middle - top - 8);
  pen.font = "10px system-ui, sans-serif";
  pen.textAlign = "right";
  for (const margin of steps) {
    pen.fillStyle = colours.quiet;
    pen.fillText(String(margin), left - 6, y(margin) + 3);
    pen.fillStyle = colours.line;
    pen.fillRect(left, y(margin), right - left, 0.5);
  }
  for (let index = 0; index < count; index += 1) {
    const flags = line.flags[first + index];
    if (flags & HUMAN) { pen.fillStyle = colours["mine-soft"]; pen.fillRect(x(index), top - 4, wide + 0.4, bottom - top + 4); pen.fillStyle = colours.mine; pen.fillRect(x(index), top - 5, wide + 0.4, 3); }
    if (flags & CALL) { pen.fillStyle = colours.call; pen.fillRect(x(index), middle - 1, wide + 0.4, 3); }
    if (index && line.episodes[first + index] !== line.episodes[first + index - 1]) {
      pen.fillStyle = colours.quiet;
      pen.fillRect(x(index), top - 4, 1, bottom - top + 4);
    }
  }
  pen.lineWidth = 1.6;
  pen.strokeStyle = colours.ink;
  pen.beginPath();
  for (let index = 0; index < count; index += 1) {
    pen.lineTo(x(index), y(line.margins[first + index]));
    pen.lineTo(x(index + 1), y(line.margins[first + index]));
  }
  pen.stroke();
  const proxies = line.proxies.slice(first), known = proxies.filter(value => value !== null);
  const low = Math.min(...known), high = Math.max(...known), range = high - low || 1;
  pen.lineWidth = 1;
  pen.strokeStyle = colours.accent;
  pen.beginPath();
  proxies.forEach((value, index) => {
    if (value === null) return;
    pen.lineTo(x(index + 0.5), bottom - 2 - ((value - low) / range) * (bottom - middle - 10));
  });
  pen.stroke();
  pen.fillStyle = colours.quiet;
  pen.textAlign = "left";
  pen.fillText(view.about.proxy || "proxy", left, height - 3);
  pen.textAlign = "right";
  pen.fillText("now", right, height - 3);
  let text = "— margin; red: calls; blue: a person steers";
  if (hovered !== null) {
    const index = Math.floor((hovered - x(0)) / wide);
    if (index >= 0 && index < count) {
      const at = first + index, proxy = line.proxies[at];
      pen.fillStyle = colours.quiet;
      pen.fillRect(x(index), top, 1, bottom - top);
      text = `episode ${line.episodes[at]}, step ${line.steps[at]}: margin ${line.margins[at]}`
        + (proxy === null ? "" : `, ${proxy.toPrecision(4)}`);
    }
  }
  set(byId("timeline-note"), "textContent", text);
}
