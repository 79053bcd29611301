"use strict";
// Shows what the server sends: pieces of HTML by key, lists of them, and times that move on.

const token = new URLSearchParams(location.hash.slice(1)).get("token") || sessionStorage.token || "";
if (location.hash.includes("token=")) {
  sessionStorage.token = token;
  history.replaceState(null, "", location.pathname + "#view=overview");
}

const byId = (id) => document.getElementById(id);
const main = byId("main"), connection = byId("connection"), newsList = byId("news");
const dialog = byId("confirm");

const CELLS = 25;  // tasks of an array in a row

// The theme is the system's, unless the button has set the other one.
const darkSystem = matchMedia("(prefers-color-scheme: dark)"), themeButton = byId("theme");

function showTheme() {
  const own = localStorage.theme || "";
  if (own) document.documentElement.dataset.theme = own;
  else delete document.documentElement.dataset.theme;
  const dark = own ? own === "dark" : darkSystem.matches;
  themeButton.textContent = "Dark";
  themeButton.setAttribute("aria-pressed", String(dark));
  return dark;
}
themeButton.addEventListener("click", () => {
  const wanted = showTheme() ? "light" : "dark";
  if ((wanted === "dark") === darkSystem.matches) delete localStorage.theme;
  else localStorage.theme = wanted;
  showTheme();
});
darkSystem.addEventListener("change", showTheme);
showTheme();
themeButton.hidden = false;

const shown = new Map();  // key -> element of a piece in a list
let frame = null, lists = {}, span = null, lastNumber = -1, stop = null, lastNews = -1, following = "";

function view() {
  const query = new URLSearchParams(location.hash.slice(1));
  return query.get("view") ? query : new URLSearchParams("view=overview");
}

// --- what is shown ---------------------------------------------------------------------------

// --- times: relative to the daemon's clock, the exact one on hover ---------------------------

let behind = 0;  // the daemon's time less this browser's, s

const now = () => Date.now() / 1000 + behind;

function relative(at) {
  const ahead = at - now(), seconds = Math.abs(ahead);
  if (seconds < 5) return "now";
  const [unit, name] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([u]) => seconds >= u);
  const words = `${Math.floor(seconds / unit)} ${name}`;
  return ahead > 0 ? `in ${words}` : `${words} ago`;
}

function hms(seconds) {
  const whole = Math.max(0, Math.round(seconds)), two = (n) => String(n).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

function tick(holder) {
  const put = (one, words) => { if (one.textContent !== words) one.textContent = words; };
  for (const one of holder.querySelectorAll("[data-at]")) put(one, relative(Number(one.dataset.at)));
  for (const one of holder.querySelectorAll("[data-since]")) put(one, hms(now() - Number(one.dataset.since)));
}
setInterval(() => tick(document), 1000);

function element(html) {
  const made = document.createElement("template");
  made.innerHTML = html;
  return made.content.firstElementChild;
}

// What has the focus is restored in what takes its place.
function keepingFocus(holder, change) {
  const had = document.activeElement;
  const inside = had && holder && holder.contains(had) ? had : null;
  const mark = inside && (inside.dataset.do || inside.getAttribute("href"));
  const after = change();
  if (inside && after && !document.contains(inside)) {
    const again = [...after.querySelectorAll("a, button")].find(
      (each) => (each.dataset.do || each.getAttribute("href")) === mark);
    (again || main).focus();
  }
}

function put(key, html) {
  const place = document.querySelector(`[data-part="${CSS.escape(key)}"]`);
  if (place) {
    keepingFocus(place, () => { place.innerHTML = html; return place; });
    tick(place);
    return;
  }
  const before = shown.get(key), made = element(html);
  shown.set(key, made);
  tick(made);
  if (before && before.isConnected) {
    keepingFocus(before, () => { before.replaceWith(made); return made; });
  }
}

function arrange(name, keys) {
  const holder = document.querySelector(`[data-list="${name}"]`);
  lists[name] = keys;
  if (!holder) return;
  const wanted = new Set(keys);
  for (const key of shown.keys()) {
    if (key.startsWith(name + "/") && !wanted.has(key)) {
      const gone = shown.get(key);
      keepingFocus(gone, () => { gone.remove(); return main; });
      shown.delete(key);
    }
  }
  keys.forEach((key, at) => {
    const piece = shown.get(key);
    if (piece && holder.children[at] !== piece) {
      keepingFocus(piece, () => { holder.insertBefore(piece, holder.children[at] || null); return piece; });
    }
  });
}

function show(message) {
  if (message.frame !== undefined && message.frame !== frame) {
    frame = message.frame;
    main.innerHTML = frame;
    shown.clear();
    lists = {};
  }
  if (message.now) behind = message.now - Date.now() / 1000;
  for (const [key, html] of Object.entries(message.parts || {})) put(key, html);
  for (const [name, keys] of Object.entries(message.lists || {})) arrange(name, keys);
  if (message.window) span = message.window;
  if (message.parts || message.window) placeTimes();
  for (const each of message.news || []) tell(each);
  if (message.seq !== undefined) main.dataset.view = following;
  if (message.missed) tell({n: lastNews, at: "", say: `${message.missed} earlier events`});
}

// Bars, words and marks stand at times: their places follow from the window that is shown.
function placeTimes() {
  const holder = main.querySelector("[data-bars]");
  if (!span || !holder) return;
  const [begin, end] = span, share = 100 / (end - begin), width = holder.clientWidth;
  let rows = 1;
  for (const shape of holder.querySelectorAll("svg.shape")) {
    rows = shape.viewBox.baseVal.height;
    shape.setAttribute("viewBox", `${begin} 0 ${end - begin} ${rows}`);
  }
  for (const mark of holder.querySelectorAll("svg.mark")) {
    mark.setAttribute("x", `${(Number(mark.dataset.a) - begin) * share}%`);
  }
  for (const text of holder.querySelectorAll("text[data-a]")) {
    const a = Number(text.dataset.a), b = text.dataset.b === undefined ? end : Number(text.dataset.b);
    const from = Math.max(0, (a - begin) * share), to = Math.min(100, (b - begin) * share);
    text.setAttribute("x", `${from}%`);
    text.style.display = (to - from) * width / 100 > 12 + 7.5 * text.textContent.length ? "" : "none";
  }
}
addEventListener("resize", placeTimes);

function tell(each) {
  if (each.n >= 0 && each.n <= lastNews && each.at) return;
  if (lastNews < 0) newsList.replaceChildren();
  lastNews = Math.max(lastNews, each.n);
  const line = document.createElement("li"), at = document.createElement("time");
  const words = document.createElement("span");
  words.textContent = each.say;
  if (each.at_s) {
    at.dataset.at = each.at_s;
    at.title = each.at;
    at.dateTime = new Date(each.at_s * 1000).toISOString();
  }
  line.append(at, words);
  newsList.prepend(line);
  tick(line);
  while (newsList.children.length > 100) newsList.lastElementChild.remove();
}

// --- the stream ------------------------------------------------------------------------------

function say(words, lost) {
  if (connection.textContent !== words) connection.textContent = words;
  connection.classList.toggle("lost", lost);
  connection.classList.toggle("live", words === "Live");
}

async function follow(query, signal) {
  const headers = {Authorization: `Bearer ${token}`};
  if (lastNumber >= 0) headers["Last-Event-ID"] = String(lastNumber);
  const answer = await fetch(`stream?${query}`, {headers, signal, cache: "no-store"});
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({error: `status ${answer.status}`}));
    say(said.error, true);
    if (answer.status === 400 || answer.status === 401) return false;
    throw new Error(said.error);
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return true;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) take(event);
  }
}

function take(event) {
  let number = null, data = "";
  for (const line of event.split("\n")) {
    if (line.startsWith("id: ")) number = Number(line.slice(4));
    if (line.startsWith("data: ")) data += line.slice(6);
  }
  const message = JSON.parse(data);
  if (message.lost) { say(`Waiting for the daemon: ${message.lost}`, true); return; }
  if (message.another) {
    lastNumber = 0;
    lastNews = -1;
    return;
  }
  show(message);
  if (number !== null) lastNumber = number;
  say("Live", false);
}

async function keepFollowing() {
  if (stop) stop.abort();
  const own = stop = new AbortController();
  const query = view();
  following = query.toString();
  if (lastNumber < 0) say("Connecting ...", false);
  for (const link of document.querySelectorAll("nav a")) {
    const own = {job: "jobs", array: "jobs"}[query.get("view")] || query.get("view");
    const is = link.getAttribute("href") === `#view=${own}`;
    if (is) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  while (!own.signal.aborted) {
    try {
      if (!await follow(query, own.signal)) return;
      say("Connection lost; trying again ...", true);
    } catch (error) {
      if (own.signal.aborted) return;
      say("Connection lost; trying again ...", true);
    }
    await new Promise((then) => setTimeout(then, 500));
  }
}
addEventListener("hashchange", () => {
  if (location.hash === "#main") { main.focus(); return; }
  keepFollowing();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { if (stop) stop.abort(); } else keepFollowing();
});

// --- acting ----------------------------------------------------------------------------------

const BODIES = {
  cancel: (target) => ({id: target}),
  resize: (target, value) => ({id: target, nodes: Number(value)}),
  hold: (target) => ({id: target}),
  release: (target) => ({id: target}),
  requeue: (target) => ({id: target}),
  drain: (target) => ({node: target}),
  resume: (target) => ({node: target}),
  policy: (target, value) => ({name: value}),
};
let chosen = null;

function confirmAct(button) {
  chosen = {...button.dataset};
  byId("confirm-say").textContent = chosen.say;
  byId("confirm-yes").textContent = button.textContent;
  byId("confirm-error").textContent = "";
  const [name, value] = (chosen.ask || "").split("=");
  byId("confirm-label").hidden = !name;
  byId("confirm-label").firstElementChild.textContent = name;
  byId("confirm-input").value = value || "";
  dialog.showModal();
  (name ? byId("confirm-input") : byId("confirm-yes")).focus();
}

async function act() {
  const body = BODIES[chosen.do](chosen.target, byId("confirm-input").value);
  try {
    const answer = await fetch(`do/${chosen.do}`, {
      method: "POST", headers: {Authorization: `Bearer ${token}`}, body: JSON.stringify(body)});
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.error);
    if (!["Resize", "Waits", undefined].includes(said.decision)) throw new Error(said.reason);
    dialog.close();
  } catch (error) {
    byId("confirm-error").textContent = error.message;
  }
}

byId("confirm-yes").addEventListener("click", act);
byId("confirm-input").addEventListener("keydown", (event) => {
  if (event.key === "Enter") { event.preventDefault(); act(); }
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-do]");
  if (button) { confirmAct(button); return; }
  const bar = event.target.closest(".block[data-job]");
  if (bar) { openJob(bar.dataset.job); return; }
  const cells = event.target.closest("svg.cells");
  if (cells) {
    const box = cells.getBoundingClientRect();
    const at = Math.floor((event.clientX - box.left) / box.width * CELLS);
    openJob(`${cells.closest("[data-array]").dataset.array}_${Number(cells.dataset.first) + at}`);
  }
});

function openJob(job) {
  if (/^[0-9_]+$/.test(job)) location.hash = `view=job&id=${job}`;
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.task !== undefined) {
    event.preventDefault();
    openJob(`${form.dataset.task}_${form.elements.task.value}`);
  } else if (form.dataset.find !== undefined) {
    event.preventDefault();
    const query = view();
    query.set("find", form.elements.find.value);
    query.delete("offset");
    location.hash = query.toString();
  }
});

// Arrow keys go through bars of jobs and cells of arrays; the line below describes the one chosen.
let cursor = [0, 0];

function moved(event, rows, count) {
  const [down, right] = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1],
    ArrowRight: [0, 1]}[event.key] || [0, 0];
  if (!rows || (!down && !right && event.key !== "Enter")) return false;
  event.preventDefault();
  cursor[0] = Math.min(Math.max(cursor[0] + down, 0), rows - 1);
  cursor[1] = Math.min(Math.max(cursor[1] + right, 0), Math.max(count(cursor[0]) - 1, 0));
  return true;
}

function overBars(event, holder) {
  const blocks = [...holder.querySelectorAll(".block[data-job]")];
  const step = {ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1}[event.key] || 0;
  if (!blocks.length || (!step && event.key !== "Enter")) return;
  event.preventDefault();
  const at = blocks.findIndex((block) => block.classList.contains("cursor"));
  if (event.key === "Enter") {
    if (at >= 0) openJob(blocks[at].dataset.job);
    return;
  }
  const goal = blocks[at < 0 ? 0 : Math.min(Math.max(at + step, 0), blocks.length - 1)];
  for (const old of holder.querySelectorAll(".cursor")) old.classList.remove("cursor");
  goal.classList.add("cursor");
  main.querySelector(".readout").textContent = goal.querySelector("title").textContent;
}

function overCells(event, holder) {
  const rows = [...holder.querySelectorAll("svg.cells")];
  if (!moved(event, rows.length, () => CELLS)) return;
  for (const old of holder.querySelectorAll("rect.cursor")) old.remove();
  const row = rows[cursor[0]], mark = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  const box = {class: "cursor", x: cursor[1] * 16, y: 0, width: 16, height: 16};
  for (const [name, value] of Object.entries(box)) mark.setAttribute(name, value);
  row.append(mark);
  const task = `${holder.dataset.array}_${Number(row.dataset.first) + cursor[1]}`;
  holder.parentElement.querySelector(".readout").textContent = `task ${task}`;
  if (event.key === "Enter") openJob(task);
}

document.addEventListener("keydown", (event) => {
  if (event.target.matches("[data-bars]")) overBars(event, event.target);
  if (event.target.matches("[data-array]")) overCells(event, event.target);
});

// Up and down go through the rows of a table.
document.addEventListener("keydown", (event) => {
  const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
  const row = event.target.closest && event.target.closest("[data-rows] > tr");
  if (!step || !row || event.target.tagName === "INPUT") return;
  const next = step > 0 ? row.nextElementSibling : row.previousElementSibling;
  const goal = next && next.querySelector("a, button");
  if (goal) { event.preventDefault(); goal.focus(); }
});

keepFollowing();
