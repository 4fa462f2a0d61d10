"use strict";
// The fleet as this page knows it, and the connection that keeps it up to date.

const CALL = 1, OUTSIDE = 2, HUMAN = 4, VOID = 8;
const LONG = 1800, SILENT = 6;
const STALLED = 3;  // seconds of silence after which the server counts as gone; it beats twice a second
const ABANDON = 15;  // … after which another connection is tried
const SNOOZE = 600;  // seconds
const SIGN = { look: "◎ look", stuck: "⟳ stuck" };  // calls that no margin asks for
const LINGER = 3;  // seconds for which a call stays visible, however short it was
const view = {
  agents: [], about: {}, people: [], me: "", looks: null, seen: null, entries: [], connected: false,
  offset: 0, socket: null, tries: 0, received: 0, heardAt: 0, stalled: false, beat: null, opened: false, unplaced: false, timeline: null, sound: false,
};
const now = () => Date.now() / 1000 + view.offset;
const remembered = (name, fallback) => {
  try { return localStorage.getItem("safemargin-" + name) ?? fallback; } catch { return fallback; }
};
const remember = (name, value) => {
  try { localStorage.setItem("safemargin-" + name, value); } catch { /* private window */ }
};

function secret() {
  let known = remembered("person", "");
  if (known.length < 16) {
    known = [...crypto.getRandomValues(new Uint8Array(16))].map(each => each.toString(16).padStart(2, "0")).join("");
    remember("person", known);
  }
  return known;
}

function begin() {
  byId("my-name").addEventListener("change", event => {
    const name = event.target.value.trim();
    remember("name", name);
    if (name) say({ do: "name", name });
    event.target.blur();
  });
  byId("sound").addEventListener("click", toggleSound);
  byId("help-open").addEventListener("click", () => byId("help").showModal());
  byId("help-close").addEventListener("click", () => byId("help").close());
  byId("take").addEventListener("click", event => takeOver(event.shiftKey));
  byId("give").addEventListener("click", handBack);
  byId("dismiss").addEventListener("click", dismiss);
  byId("seen").addEventListener("click", acknowledge);
  byId("snooze").addEventListener("click", snooze);
  byId("hand-over").addEventListener("change", handOver);
  view.sound = remembered("sound", "") === "on";
  showSound();
  beginKeys();
  beginTimeline();
  connect();
  addEventListener("pagehide", disconnect);  // or a page kept for the back button would count as open
  addEventListener("pageshow", event => { if (event.persisted && !view.socket) connect(); });
  setInterval(everySecond, 1000);
  setInterval(checkSilence, 250);
  requestAnimationFrame(draw);
}

// -- the connection -------------------------------------------------------------------------

function connect() {
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live`);
  socket.binaryType = "arraybuffer";
  view.socket = socket;
  socket.onopen = () => {
    const name = remembered("name", "").trim();
    socket.send(JSON.stringify({ do: "hello", secret: secret(), ...(name ? { name } : {}) }));
  };
  socket.onmessage = event => {
    view.heardAt = Date.now();
    if (typeof event.data === "string") heard(JSON.parse(event.data));
    else saw(event.data);
  };
  socket.onclose = () => {
    disconnect();
    view.tries += 1;
    showAway();
    view.retry = setTimeout(connect, Math.min(3000, 300 * view.tries));
  };
}

function disconnect() {
  clearTimeout(view.retry);
  const socket = view.socket;
  view.connected = view.stalled = false;
  view.socket = view.beat = null;
  if (!socket) return;
  socket.onopen = socket.onmessage = socket.onclose = null;
  socket.close();
}

function showAway() {
  releaseKeys();
  steering.answered = "";  // the last answer may not have arrived; the server refuses a second one
  document.body.classList.add("away");
  byId("away").hidden = false;
  byId("away").textContent = "The server cannot be reached. This page shows the last known state; reconnecting …";
}

function showReached() {
  const { log_fault: log, notify_fault: notify } = view.about;
  const faults = [
    log && `The log cannot be written: ${log}`,
    notify && `People away from this page are not notified of calls: ${notify}. The server's output says why.`,
  ].filter(Boolean);
  document.body.classList.remove("away");
  byId("away").hidden = !faults.length;
  byId("away").textContent = faults.join(" ");
  byId("flood").hidden = !view.about.floods || Boolean(view.about.budget);
  byId("flood").textContent = `These agents call more than anybody can answer: ${view.about.forecast}. Start with --budget 20/hour.`;
}

// A server or network that stalls closes no connection; only its silence shows it.
function checkSilence() {
  if (!view.socket || (!view.connected && !view.stalled)) return;
  const silence = (Date.now() - view.heardAt) / 1000;
  if (silence > ABANDON) {
    disconnect();
    connect();
  } else if (silence > STALLED && view.connected) {
    view.connected = false;
    view.stalled = true;
    showAway();
  }
}

function comeBack() {
  view.stalled = false;
  view.connected = true;
  showReached();
  say({ do: "look", agent: view.looks });
}

function say(message) {
  if (view.connected) view.socket.send(JSON.stringify({ ...message, beat: view.beat }));
}

function heard(message) {
  view.received += 1;
  if (message.kind === "fleet") {
    view.connected = view.opened = true;
    view.tries = 0;
    view.offset = message.now - Date.now() / 1000;
    view.about = message.about;
    showReached();
    const looked = view.looks === null ? null : view.agents[view.looks]?.name;
    const pictures = new Map(view.agents.map(agent => [agent.name, agent.picture]));
    view.agents = message.agents.map(state => ({
      ...state, margins: state.trend.margins, flags: state.trend.flags, picture: pictures.get(state.name) || "",
    }));
    view.entries = message.recent;
    view.people = message.people;
    makeTiles();
    const again = view.agents.find(agent => agent.name === looked);
    view.looks = null;
    if (again) look(again.index);
  } else if (message.kind === "beat") {
    view.beat = message.beat;
    if (view.stalled) comeBack();  // not earlier: the server refuses requests with an older beat
  } else if (message.kind === "faults") {
    Object.assign(view.about, message);
    if (view.connected) showReached();
  } else if (message.kind === "agents") {
    view.offset = message.now - Date.now() / 1000;
    for (const state of message.agents) changed(state);
  } else if (message.kind === "people") {
    view.people = message.names;
    showPeople();
  } else if (message.kind === "decisions") {
    for (const row of message.rows) decided(...row);
  } else if (message.kind === "seen" && message.index === view.looks) {
    view.seen = message;
    const agent = view.agents[message.index];
    agent.waiting = message.waiting;
    steer();
  } else if (message.kind === "timeline" && message.index === view.looks) {
    view.timeline = message;
  } else if (message.kind === "entries") {
    view.entries = [...view.entries, ...message.entries].slice(-400);
    const name = view.agents[view.looks]?.name;
    if (message.entries.some(entry => entry.agent === name)) showEntries();
  } else if (message.kind === "you") {
    view.me = message.name;
    if (document.activeElement !== byId("my-name")) byId("my-name").value = message.name;
    showPeople();
    for (const agent of view.agents) agent.dirty = true;
    const held = view.agents.find(agent => agent.control === view.me);
    if (view.opened && view.looks === null && held) look(held.index);
    view.opened = false;
  } else if (message.kind === "note" || message.kind === "error" || message.kind === "closed") {
    if (message.undone === "act") steering.answered = "";
    note(message.text);
  }
}

function changed(state) {
  const known = view.agents[state.index];
  if (!known) {
    view.agents[state.index] = { ...state, margins: [], flags: [], picture: "" };
    makeTiles();
  } else {
    if (state.calling && !known.calling && !state.control) called(state);
    if (state.status !== known.status && (state.status === "lost" || state.status === "died"))
      byId("said").textContent = state.status === "died" ? `${state.name} has died` : `${state.name} is lost`;
    if ((state.status === "live") !== (known.status === "live") || state.dismissed !== known.dismissed) view.unplaced = true;
    Object.assign(known, state);
    known.dirty = true;
  }
  if (state.index === view.looks) steer();
  view.unsorted = true;
}

function decided(index, episode, step, margin, proxy, flags) {
  const agent = view.agents[index];
  if (!agent) return;
  Object.assign(agent, { episode, step, margin, proxy, heard_at: now(), dirty: true });
  agent.margins.push(margin);
  agent.flags.push(flags);
  if (agent.margins.length > 240) {
    agent.margins.splice(0, 120);
    agent.flags.splice(0, 120);
  }
  if (index === view.looks && view.timeline) {
    const line = view.timeline;
    line.episodes.push(episode); line.steps.push(step); line.margins.push(margin);
    line.proxies.push(proxy); line.flags.push(flags);
    if (line.steps.length > LONG + 200)
      for (const name of ["episodes", "steps", "margins", "proxies", "flags"]) line[name].splice(0, 200);
  }
}

function saw(data) {
  const agent = view.agents[new DataView(data).getUint16(0)];
  if (!agent) return;
  const old = agent.picture;
  agent.picture = URL.createObjectURL(new Blob([new Uint8Array(data, 6)]));
  agent.picture_step = new DataView(data).getUint32(2);
  agent.pictured = true;
  agent.dirty = agent.newPicture = true;
  if (old) setTimeout(() => URL.revokeObjectURL(old), 500);
}

// -- what an agent is right now -------------------------------------------------------------

function stateOf(agent) {
  if (agent.status !== "live") return agent.status;
  if (agent.control) return agent.control === view.me ? "mine" : "theirs";
  if (agent.calling) return agent.seen_by ? "seen" : "calls";
  if (agent.snoozed_until > now()) return "snoozed";
  if (now() - agent.called_since < LINGER) return "called";
  return agent.step !== null && now() - agent.heard_at > SILENT ? "silent" : "well";
}

function stateText(agent) {
  const state = stateOf(agent);
  return {
    calls: `${SIGN[agent.cause] || "▲ calls"} ${span(now() - agent.called_since)}${recovered(agent) ? ", since recovered" : ""}`,
    seen: `✓ ${agent.seen_by === view.me ? "you" : agent.seen_by}`,
    snoozed: `☾ ${span(agent.snoozed_until - now())}`,
    called: "△ called",
    mine: "◆ you",
    theirs: `◇ ${agent.control}`,
    silent: `… silent ${span(now() - agent.heard_at)}`,
    lost: "✕ lost", died: "✕ died", left: "left", well: agent.void ? "drifted" : "",
  }[state];
}

// A call lasts until somebody would have had time for it; meanwhile the margin may rise again.
function recovered(agent) {
  return agent.calling && agent.cause === "margin" && levelOf(agent.margin) !== "low";
}

function shortText(agent) {
  const state = stateOf(agent);
  if (state === "calls") return `${(SIGN[agent.cause] || "▲")[0]} ${span(now() - agent.called_since)}`;
  if (state === "seen") return `✓ ${agent.seen_by === view.me ? "you" : agent.seen_by}`;
  return state === "called" ? "△" : stateText(agent);
}

function levelOf(margin) {
  const callAt = view.about.call_at ?? 1;
  if (margin < callAt) return "low";
  return margin < (view.about.release_at ?? callAt * 2) ? "middle" : "high";
}

function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 90) return `${whole} s`;
  return whole < 5400 ? `${Math.round(whole / 60)} min` : `${(whole / 3600).toFixed(1)} h`;
}

// -- notes and sounds -------------------------------------------------------------------------

function note(text) {
  const line = make("p", "", text);
  byId("notes").append(line);
  while (byId("notes").children.length > 4) byId("notes").firstChild.remove();
  setTimeout(() => line.remove(), 8000);
}

function called(agent) {
  byId("said").textContent = `${agent.name} ${{ look: "wants a random look", stuck: "is stuck" }[agent.cause] || "calls"}, margin ${agent.margin}`;
  beep();
}

let audio = null, lastBeep = 0;
function beep() {
  if (!view.sound || Date.now() - lastBeep < 1500) return;
  lastBeep = Date.now();
  audio ??= new AudioContext();
  audio.resume();
  for (const [start, pitch] of [[0, 660], [0.16, 880]]) {
    const tone = audio.createOscillator(), volume = audio.createGain();
    tone.frequency.value = pitch;
    const at = audio.currentTime + start;
    volume.gain.setValueAtTime(0, at);
    volume.gain.linearRampToValueAtTime(0.12, at + 0.02);
    volume.gain.linearRampToValueAtTime(0, at + 0.14);
    tone.connect(volume).connect(audio.destination);
    tone.start(at);
    tone.stop(at + 0.16);
  }
}

function toggleSound() {
  view.sound = !view.sound;
  remember("sound", view.sound ? "on" : "off");
  showSound();
  beep();
}

function showSound() {
  byId("sound").textContent = view.sound ? "sound on" : "sound off";
  byId("sound").setAttribute("aria-pressed", view.sound);
}
