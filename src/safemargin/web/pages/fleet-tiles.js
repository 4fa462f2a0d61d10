"use strict";
// Tiles, the queue, and the line at the top.

const inSight = new IntersectionObserver(found => {
  for (const each of found) {
    const agent = view.agents[each.target.dataset.index];
    if (agent) agent.visible = each.isIntersecting, agent.dirty = true;
  }
});

const present = () => view.agents.filter(agent => !agent.dismissed);

function makeTiles() {
  view.unplaced = false;
  const tiles = byId("tiles");
  inSight.disconnect();
  tiles.replaceChildren();
  document.body.classList.toggle("small-tiles", present().length > 40);
  const gone = agent => Number(agent.status !== "live");
  const byName = (one, other) => gone(one) - gone(other) || one.name.localeCompare(other.name, undefined, { numeric: true });
  for (const agent of present().sort(byName)) {
    const tile = make("div", "tile");
    tile.tabIndex = 0;
    tile.setAttribute("role", "listitem");
    tile.dataset.index = agent.index;
    const top = make("div", "top"), screen = make("div", "screen"), foot = make("div", "foot");
    agent.parts = {
      tile, chip: make("span", "chip"), name: make("b", "", agent.name), picture: make("img"),
      big: make("span", "big"), number: make("span", "number"), trend: make("canvas"),
    };
    agent.parts.picture.alt = "";
    top.append(agent.parts.name, agent.parts.chip);
    screen.append(agent.parts.picture, agent.parts.big);
    foot.append(agent.parts.number, agent.parts.trend);
    tile.append(top, screen, foot);
    tile.addEventListener("click", () => look(agent.index));
    tile.addEventListener("keydown", event => {
      if (event.key === "Enter" && view.looks !== agent.index) { look(agent.index); event.stopPropagation(); }
    });
    tiles.append(tile);
    inSight.observe(tile);
    agent.visible = agent.dirty = agent.newPicture = true;
  }
  byId("nobody").hidden = present().length > 0;
  byId("nobody").textContent = view.about.remote
    ? "No agent has connected yet. Remote agents connect with sm.RemoteOverseer(address, name=…, token=…)."
    : "Starting the agents …";
  view.unsorted = true;
}

let drawnAt = 0;
function draw(time) {
  requestAnimationFrame(draw);
  if (time - drawnAt < 90) return;
  drawnAt = time;
  if (view.unplaced) makeTiles();
  for (const agent of view.agents) {
    if (!agent.dirty) continue;
    if (agent.index === view.looks) showAgent();
    if (!agent.visible || agent.dismissed) continue;
    agent.dirty = false;
    drawTile(agent);
  }
  if (view.unsorted) sortQueue();
}

function drawTile(agent) {
  const parts = agent.parts, state = stateOf(agent), margin = agent.step === null ? "–" : agent.margin;
  const level = agent.step === null ? "high" : levelOf(agent.margin);
  set(parts.tile.dataset, "state", state);
  parts.tile.classList.toggle("here", agent.index === view.looks);
  parts.tile.classList.toggle("plain", !agent.picture);
  set(parts.chip.dataset, "state", state);
  const small = document.body.classList.contains("small-tiles");
  set(parts.chip, "textContent", small ? shortText(agent) : stateText(agent));
  parts.tile.title = agent.status === "live" ? agent.why || "" : agent.reason;
  parts.tile.setAttribute("aria-label", `${agent.name}, margin ${margin}, ${stateText(agent) || "no call"}`);
  parts.picture.hidden = !agent.picture;
  parts.big.hidden = Boolean(agent.picture);
  set(parts.big, "textContent", String(margin));
  if (agent.newPicture) {
    agent.newPicture = false;
    if (agent.picture) parts.picture.src = agent.picture;
  }
  parts.number.hidden = !agent.picture && !document.body.classList.contains("small-tiles");
  set(parts.number, "textContent", String(margin));
  set(parts.number.dataset, "level", level);
  drawTrend(parts.trend, agent);
}

function set(target, name, value) {
  if (target[name] !== value) target[name] = value;
}

function levels() {
  return [0, ...(view.about.n_values || [1, 2, 4, 8, 16, 32])];
}

function heightOf(margin, steps) {
  let index = 0;
  while (index + 1 < steps.length && steps[index + 1] <= margin) index += 1;
  return index / Math.max(1, steps.length - 1);
}

function fit(canvas) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "quiet", "line", "call", "call-soft", "mine", "mine-soft", "accent", "middle"])
    colours[name] = style.getPropertyValue("--" + name).trim();
}
readColours();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColours);

function drawTrend(canvas, agent) {
  const { pen, width, height } = fit(canvas);
  const shown = agent.margins.slice(-90), flags = agent.flags.slice(-90), steps = levels();
  const x = index => width - (shown.length - index) * (width / 90);
  const y = margin => height - 3 - heightOf(margin, steps) * (height - 6);
  pen.fillStyle = colours.call;
  flags.forEach((flag, index) => { if (flag & CALL) pen.fillRect(x(index), height - 2, width / 90 + 0.5, 2); });
  pen.fillStyle = colours.mine;
  flags.forEach((flag, index) => { if (flag & HUMAN) pen.fillRect(x(index), 0, width / 90 + 0.5, 2); });
  pen.strokeStyle = colours.quiet;
  pen.lineWidth = 1.3;
  pen.beginPath();
  shown.forEach((margin, index) => {
    pen.lineTo(x(index), y(margin));
    pen.lineTo(x(index + 1), y(margin));
  });
  pen.stroke();
}

// -- the queue ------------------------------------------------------------------------------

function urgency(one, other) {
  const rank = agent => ({ calls: 0, called: 1, seen: 2, silent: 3, well: 3, snoozed: 4, mine: 4, theirs: 4 }[stateOf(agent)] ?? 5);
  return rank(one) - rank(other) || one.margin - other.margin
    || (one.calling ? one.called_since - other.called_since : 0) || one.index - other.index;
}

function ordered() {
  return present().filter(agent => agent.status !== "left").sort(urgency);
}

// Under the pointer the queue keeps its order, so that a click meets the agent it was meant for;
// agents that come meanwhile are added at the end.
let queued = [];
function heldOrder() {
  const places = new Map(queued.map((index, place) => [index, place]));
  const place = agent => places.get(agent.index) ?? queued.length;
  return present().filter(agent => agent.status !== "left" || places.has(agent.index))
    .sort((one, other) => place(one) - place(other) || urgency(one, other));
}

byId("queue").addEventListener("pointerleave", () => { view.unsorted = true; });

let sortedAt = 0;
function sortQueue() {
  if (Date.now() - sortedAt < 400) return;
  sortedAt = Date.now();
  view.unsorted = false;
  const queue = byId("queue"), held = queue.matches(":hover");
  const rows = (held ? heldOrder() : ordered()).slice(0, 60);
  queued = rows.map(agent => agent.index);
  rows.forEach((agent, index) => {
    let row = queue.children[index];
    if (!row) {
      row = make("li");
      row.append(make("span", "number"), make("b"), make("span", "state"));
      row.addEventListener("click", () => look(Number(row.dataset.index)));
      queue.append(row);
    }
    const state = stateOf(agent), [number, name, text] = row.children;
    set(row.dataset, "index", String(agent.index));
    set(row.dataset, "state", state);
    row.classList.toggle("here", agent.index === view.looks);
    row.classList.toggle("gone", agent.status !== "live");
    set(number, "textContent", agent.step === null ? "–" : String(agent.margin));
    set(number.dataset, "level", agent.step === null ? "high" : levelOf(agent.margin));
    set(name, "textContent", agent.name);
    set(text, "textContent", shortText(agent));
  });
  while (queue.children.length > rows.length) queue.lastChild.remove();
  const calls = view.agents.filter(agent => stateOf(agent) === "calls").length;
  const mine = view.agents.filter(agent => stateOf(agent) === "mine").length;
  const live = view.agents.filter(agent => agent.status === "live").length;
  const lost = present().filter(agent => agent.status === "lost" || agent.status === "died").length;
  const about = view.about;
  const parts = [
    `${live} agent${live === 1 ? "" : "s"}`, calls ? `${calls} calling` : "none calling",
    mine ? `${mine} steered by you` : "", lost ? `${lost} lost` : "",
    about.environment || "", about.tolerance === undefined ? "" : `tolerance ${about.tolerance}`,
    about.budget ? `budget ${about.budget}` : about.call_at === undefined ? "" : `call below margin ${about.call_at}`,
  ];
  set(byId("summary"), "textContent", parts.filter(Boolean).join(" · "));
  set(byId("queue-note"), "textContent", held ? "order held under the pointer" : "smallest margin first");
  document.title = (calls ? `▲ ${calls} · ` : "") + "fleet · safemargin";
}

function everySecond() {
  for (const agent of view.agents)
    if (agent.calling || agent.control || agent.snoozed_until || agent.status !== "live" || now() - agent.heard_at > SILENT) agent.dirty = true;
  view.unsorted = true;
}
