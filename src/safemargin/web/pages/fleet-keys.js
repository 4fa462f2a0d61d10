"use strict";
// Steering and navigating by keyboard.

const WORDS = { ArrowUp: "UP", ArrowDown: "DOWN", ArrowLeft: "LEFT", ArrowRight: "RIGHT", " ": "FIRE" };
const SIGNS = { UP: "↑", DOWN: "↓", LEFT: "←", RIGHT: "→", FIRE: "space" };
const ORDER = ["UP", "DOWN", "RIGHT", "LEFT", "FIRE"];
const KEPT = 2000;  // milliseconds that a key pressed too early waits for the agent's question
const HOLD = 300;  // milliseconds after which a held key repeats
const pressed = new Set();
const steering = { pressedAt: 0, once: undefined, onceAt: 0, answered: "", sentAt: 0, timer: 0 };

function wordsOf(name) {
  const found = name.toUpperCase().replace(/[^A-Z]/g, "").match(/^(UP|DOWN|LEFT|RIGHT|FIRE)+$/);
  return found ? found[0].match(/UP|DOWN|LEFT|RIGHT|FIRE/g) : [];
}

function signature(words) {
  return ORDER.filter(word => words.includes(word)).join("+");
}

// Which keys stand for which action: key names → index of the action.
function keysOf(agent) {
  const names = agent.action_names, map = new Map();
  names.forEach((name, index) => { const words = wordsOf(name); if (words.length) map.set(signature(words), index); });
  if (!map.size && agent.actions === 2) { map.set("LEFT", 0); map.set("RIGHT", 1); }
  return map;
}

function keyText(agent, index) {
  for (const [words, action] of keysOf(agent)) if (action === index) return words.split("+").map(word => SIGNS[word]).join(" ");
  return index < 10 ? String((index + 1) % 10) : "";
}

function wantedAction(agent) {
  for (const key of pressed) {
    if (/^[0-9]$/.test(key)) {
      const index = (Number(key) + 9) % 10;
      if (index < agent.actions) return agent.first_action + index;
    }
    if (key === "Enter") return null;
  }
  const words = [...pressed].map(key => WORDS[key]).filter(Boolean);
  const index = words.length ? keysOf(agent).get(signature(words)) : undefined;
  return index === undefined ? undefined : agent.first_action + index;
}

function mineNow() {
  const agent = view.looks === null ? null : view.agents[view.looks];
  return view.connected && agent && stateOf(agent) === "mine" ? agent : null;
}

// Answer the next decision with this action, if it comes soon.
function want(action) {
  if (!mineNow()) return;
  steering.once = action;
  steering.onceAt = Date.now();
  steer();
}

// Answer the decision that waits, if a key is pressed.
function steer() {
  const agent = mineNow(), seen = view.seen;
  if (!agent || !seen || !seen.waiting) return;
  const decision = `${seen.episode}/${seen.step}`;
  if (steering.answered === decision) return;
  if (Date.now() - steering.onceAt > KEPT) steering.once = undefined;
  let action = steering.once;
  if (action === undefined) {
    if (!pressed.size || Date.now() - steering.pressedAt < HOLD) return;
    const pause = 1000 / (view.about.speed || 15) - 4;
    if (Date.now() - steering.sentAt < pause) {
      clearTimeout(steering.timer);
      steering.timer = setTimeout(steer, pause);
      return;
    }
    action = wantedAction(agent);
    if (action === undefined) return;
  }
  answer(agent, action);
}

function answer(agent, action) {
  const seen = view.seen;
  steering.once = undefined;
  steering.answered = `${seen.episode}/${seen.step}`;
  steering.sentAt = Date.now();
  say({ do: "act", agent: agent.index, episode: seen.episode, step: seen.step, action });
  showPressed(agent, action);
}

function beginKeys() {
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    if (event.target.matches("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const agent = mineNow();
    const steers = agent && !agent.dimensions && (event.key in WORDS || /^[0-9]$/.test(event.key) || event.key === "Enter");
    if (steers) {
      event.preventDefault();
      if (event.repeat) return;
      pressed.add(event.key);
      steering.pressedAt = Date.now();
      const action = wantedAction(agent);
      if (action !== undefined) { want(action); setTimeout(steer, HOLD + 10); }
    } else if (!event.repeat) {
      moveAbout(event);
    }
  });
  document.addEventListener("keyup", event => {
    pressed.delete(event.key);
    if (!pressed.size) showPressed(null);
  });
  addEventListener("blur", releaseKeys);
}

function releaseKeys() {
  pressed.clear();
  steering.once = undefined;
  showPressed(null);
}

function moveAbout(event) {
  const queue = ordered(), at = queue.findIndex(agent => agent.index === view.looks);
  const go = index => { if (queue[index]) look(queue[index].index); };
  const key = event.key.toLowerCase();
  if (key === "n") go(0);
  else if (key === "j") go(Math.min(at + 1, queue.length - 1));
  else if (key === "k") go(Math.max(at - 1, 0));
  else if (key === "t") takeOver(event.shiftKey);
  else if (key === "a") acknowledge();
  else if (key === "z") snooze();
  else if (key === "h") byId("hand-over").focus();
  else if (key === "m") toggleSound();
  else if (event.key === "?") byId("help").showModal();
  else if (event.key === "Escape") { if (mineNow()) handBack(); else look(null); }
  else return;
  event.preventDefault();
}

function takeOver(force = false) {
  const agent = view.agents[view.looks];
  if (!agent || agent.control === view.me) return;
  releaseKeys();
  say({ do: "take", agent: agent.index, force });
  document.activeElement?.blur();
}

function handBack() {
  const agent = view.agents[view.looks];
  if (agent && agent.control === view.me) say({ do: "give", agent: agent.index });
  releaseKeys();
}

function acknowledge() {
  const agent = view.agents[view.looks];
  if (agent?.calling && !agent.seen_by) say({ do: "acknowledge", agent: agent.index });
}

function snooze() {
  const agent = view.agents[view.looks];
  if (agent) say({ do: "snooze", agent: agent.index, seconds: snoozed(agent) ? 0 : SNOOZE });
}

function handOver(event) {
  const agent = view.agents[view.looks], to = event.target.value;
  event.target.value = "";
  event.target.blur();
  if (agent && to) say({ do: "hand-over", agent: agent.index, to });
  releaseKeys();
}

function dismiss() {
  const agent = view.agents[view.looks];
  if (!agent || !view.connected) return;
  say({ do: "dismiss", agent: agent.index });
  if (!agent.control || agent.control === view.me) look(null);
}

// -- the buttons ----------------------------------------------------------------------------

function showPad(agent, mine) {
  const pad = byId("pad"), drawn = mine ? `${agent.name} ${agent.actions}` : "";
  pad.hidden = !mine;
  if (pad.dataset.for === drawn) return;
  pad.dataset.for = drawn;
  pad.replaceChildren();
  if (!mine) return;
  if (agent.dimensions) return showValues(agent, pad);
  const add = (text, key, action) => {
    const button = make("button", action === null ? "own" : "", text);
    button.dataset.action = String(action);
    if (key) button.append(make("kbd", "", key));
    button.addEventListener("click", () => { button.blur(); want(action); });
    pad.append(button);
  };
  for (let index = 0; index < agent.actions; index += 1)
    add(actionName(agent, index), keyText(agent, index), agent.first_action + index);
  add("agent's own action", "enter", null);
}

function showValues(agent, pad) {
  const form = make("form", "values"), own = Array.isArray(view.seen?.proposed) ? view.seen.proposed : [];
  const fields = Array.from({ length: agent.dimensions }, (_, index) => {
    const field = make("input");
    field.type = "number";
    field.step = "any";
    field.value = Number((own[index] ?? 0).toPrecision(4));
    field.setAttribute("aria-label", `value ${index}`);
    return field;
  });
  const act = make("button", "", "act"), leave = make("button", "own", "agent's own action");
  leave.type = "button";
  leave.addEventListener("click", () => want(null));
  form.addEventListener("submit", event => {
    event.preventDefault();
    want(fields.map(field => Number(field.value)));
  });
  form.append(...fields, act, leave);
  pad.append(form);
}

function showPressed(agent, action) {
  for (const button of byId("pad").querySelectorAll("button"))
    button.classList.toggle("pressed", agent !== null && button.dataset.action === String(action));
}
