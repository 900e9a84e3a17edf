"use strict";

const $ = (id) => document.getElementById(id);
const GRADES = [["Not relevant", "No"], ["Partly relevant", "Partly"], ["Relevant", "Yes"]];
let state = null;
let query = "";
let serial = 0;
let shown = "";  // the model of the tab that is open on a narrow page
const found = new Map();  // model to hits, null while the model is not ready
const skipped = new Set();
let pair = null;
let read = null;

/** An element; texts are never read as HTML. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const marked = (parts) => parts.map(([text, matched]) => (matched ? make("mark", {}, text) : text));
const number = (value) => value.toLocaleString("en");
const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3);
const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;

/** The part of a model's name that tells it from others: prefix and last folder. */
function short(name) {
  const [, kind, place] = name.match(/^((?:[a-z0-9@+.-]+:)?)(.*)$/s);
  return kind + place.replace(/\/+$/, "").split("/").pop();
}

function notice(text, kind = "") {
  $("notice").textContent = text;
  $("notice").className = `notice ${kind}`;
}

async function ask(path, content) {
  const post = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(content) };
  const answer = await fetch(path, content === undefined ? {} : post);
  const body = await answer.json();
  if (answer.status === 401) showLogin("");
  if (!answer.ok) throw new Error(body.error);
  return body;
}

/** Do something that a person asked for; what goes wrong is shown. */
async function attempt(act) {
  try {
    return await act();
  } catch (error) {
    notice(error instanceof TypeError ? gone() : error.message, "wrong");
    return null;
  }
}

const gone = () => `The program has ended. ${state ? `Your judgements are in ${state.log}.` : ""}`;
const get = (path, given = {}) => ask(`${path}?${new URLSearchParams(given)}`);

// State: how far models and verdict are, and what is judged.

async function poll() {
  let wait = 2000;
  try {
    if (!$("page").hidden && !document.hidden) {
      const before = state;
      await refresh();
      if (before === null || $("notice").textContent.startsWith("The program")) notice("");
      if (state.working || state.models.some((model) => !["ready", "failed"].includes(model.state))) wait = 700;
    }
  } catch (error) {
    if (error instanceof TypeError) notice(gone(), "wrong");
  }
  setTimeout(poll, wait);
}

async function refresh() {
  const asked = query;
  const now = await get("api/state", { query });
  if (asked !== query) now.grades = state.grades; // those of the query before
  show(now);
}

function show(now) {
  const first = state === null;
  state = now;
  if (first) begin();
  for (const model of state.models) {
    const place = column(model.name);
    place.querySelector(".status").textContent = status(model);
    place.classList.toggle("failed", model.state === "failed");
    const bar = place.querySelector("progress");
    bar.hidden = ["ready", "failed"].includes(model.state);
    if (model.state === "encoding") Object.assign(bar, { max: state.documents, value: model.done });
    if (model.state === "ready" && found.get(model.name) === null) searchWith(model.name, serial);
  }
  const { queries, documents } = state.judged;
  $("count").textContent = documents
    ? `${plural(documents, "judgement", "judgements")} of ${plural(queries, "query", "queries")}.`
    : "Nothing is judged yet.";
  $("undo").disabled = !state.can_undo;
  for (const group of document.querySelectorAll(".grades[data-id]")) showGrade(group);
  showProposed();
  showVerdict();
}

/** Queries to ask for someone to whom nothing comes to mind, until something was asked. */
function showProposed() {
  const place = $("proposed");
  const texts = query ? [] : state.proposed;
  place.hidden = !texts.length;
  const shown = [...place.querySelectorAll("button")].map((button) => button.textContent);
  if (JSON.stringify(shown) === JSON.stringify(texts)) return;
  place.querySelectorAll("button").forEach((button) => button.remove());
  for (const text of texts) place.append(" ", make("button", { type: "button", on: { click: () => search(text) } }, text));
}

function status({ state: now, done, remark }) {
  const ready = found.size ? "" : "ready";
  const texts = { waiting: "waiting", loading: "loading …", ready, failed: remark };
  return now === "encoding" ? `encoding ${number(done)} of ${number(state.documents)} texts …` : texts[now];
}

/** What depends on the models' names, once. */
function begin() {
  $("dataset").textContent = state.dataset;
  $("size").textContent = plural(state.documents, "text", "texts");
  document.title = `${state.dataset} – search and judge`;
  for (const { name, about } of state.models) {
    const title = short(name);
    const head = make("h2", { title: name }, title, " ", make("span", { class: "about" }, about === title ? "" : about));
    $("columns").append(make("section", { class: "column", "data-model": name, "aria-label": name }, head,
      make("p", { class: "status" }), make("progress", { "aria-label": `Progress of ${title}`, hidden: true }), make("ol", {})));
    $("tabs").append(make("button", { type: "button", "data-model": name, on: { click: () => open(name) } }, title));
  }
  $("kept").hidden = !state.kept;
  if (state.kept) $("kept").textContent = `Queries that are asked here are kept in ${state.kept}.`;
  open(state.models[0].name);
}

const column = (name) => [...$("columns").children].find((one) => one.dataset.model === name);

function open(name) {
  shown = name;
  for (const tab of $("tabs").children) tab.setAttribute("aria-pressed", tab.dataset.model === name);
  for (const one of $("columns").children) one.classList.toggle("open", one.dataset.model === name);
}

// Searching.

async function search(text, remember = true) {
  query = text.trim().replace(/\s+/g, " ");
  if (!query || state === null) return;
  $("query").value = query;
  if (remember) history.pushState(null, "", `?${new URLSearchParams({ q: query })}`);
  serial += 1;
  $("hint").hidden = true;
  notice("");
  state.grades = {};
  await Promise.all(state.models.map(({ name }) => searchWith(name, serial)));
  attempt(refresh);
}

async function searchWith(name, mine) {
  found.set(name, undefined);
  column(name).classList.add("busy");
  const answer = await attempt(() => get("api/search", { model: name, query }));
  if (mine !== serial) return;
  column(name).classList.remove("busy");
  found.set(name, answer === null ? [] : answer.hits);
  const list = column(name).querySelector("ol");
  if (answer === null || answer.hits === null) {
    list.replaceChildren();
    return;
  }
  const most = Math.max(...answer.hits.map((hit) => Math.max(hit.dense || 0, hit.lexical || 0)), 1e-9);
  list.replaceChildren(...answer.hits.map((hit) => card(hit, most)));
  column(name).querySelector(".status").textContent = answer.hits.length ? "" : "No document contains these words.";
  showRanks();
}

function card(hit, most) {
  const title = make("button", { type: "button", class: "title", on: { click: () => readFull(hit.id) } }, hit.title || hit.id);
  const place = [hit.place, hit.section].filter((part) => part && part !== hit.title).join(" › ");
  const item = make("li", { class: "hit", "data-id": hit.id },
    make("div", { class: "head" }, make("span", { class: "rank" }, String(hit.rank)), title),
    place ? make("p", { class: "place", title: hit.id }, place) : null,
    make("p", { class: "snippet" }, ...marked(hit.snippet)),
    why(hit, most),
    make("div", { class: "foot" }, grades(hit.id, hit.title || hit.id), make("span", { class: "others" })));
  const same = (on) => () => document.querySelectorAll(".hit").forEach((other) => other.classList.toggle("same", on && other.dataset.id === hit.id));
  for (const event of ["mouseenter", "focusin"]) item.addEventListener(event, same(true));
  for (const event of ["mouseleave", "focusout"]) item.addEventListener(event, same(false));
  return item;
}

/** What meaning and words add to the score. */
function why({ dense, lexical, score }, most) {
  const parts = [["meaning", dense], ["words", lexical]].filter(([, value]) => value !== null);
  const list = make("dl", { class: "why", title: `score ${score.toFixed(3)}` });
  for (const [name, value] of parts) {
    const bar = make("span", { class: `bar ${name}` });
    bar.style.setProperty("width", `${(100 * Math.max(value, 0)) / most}%`);
    list.append(make("dt", {}, name), make("dd", {}, make("span", { class: "track", "aria-hidden": "true" }, bar), value.toFixed(2)));
  }
  return list;
}

/** Where other models have the same document. */
function showRanks() {
  for (const item of document.querySelectorAll(".hit")) {
    const own = item.closest(".column").dataset.model;
    const ranks = [...found].filter(([name, hits]) => name !== own && hits).map(([name, hits]) => {
      const hit = hits.find(({ id }) => id === item.dataset.id);
      return hit ? `${short(name)} ${hit.rank}` : null;
    }).filter(Boolean);
    item.querySelector(".others").textContent = ranks.join(" · ");
    item.querySelector(".others").title = ranks.length ? "rank by other models" : "";
  }
}

// Judging.

function grades(id, title) {
  const group = make("div", { class: "grades", role: "group", "aria-label": `Judge ${title}`, "data-id": id });
  GRADES.forEach(([name, text], grade) => {
    const press = { "aria-label": name, title: `${name} (${grade})`, "aria-pressed": "false", on: { click: () => judge(id, grade) } };
    group.append(make("button", { type: "button", class: `grade g${grade}`, ...press }, text));
  });
  const clear = { type: "button", class: "clear", "aria-label": "Take the judgement back", title: "Take back (x)", on: { click: () => judge(id, null) } };
  group.append(make("button", clear, "✕"));
  showGrade(group);
  return group;
}

function showGrade(group) {
  const grade = state.grades[group.dataset.id];
  group.classList.toggle("judged", grade !== undefined);
  group.querySelectorAll(".grade").forEach((button, at) => button.setAttribute("aria-pressed", String(at === grade)));
}

async function judge(id, grade, asked = null) {
  const of = asked || { query, query_id: null };
  const now = await attempt(() => ask("api/judge", { document: id, grade, query: of.query, query_id: of.query_id }));
  if (now === null) return false;
  if (of.query !== query) now.grades = state.grades;
  show(now);
  notice(grade === null ? "Judgement taken back." : `Judged: ${GRADES[grade][0].toLowerCase()}.`, "quiet");
  return true;
}

async function undo() {
  await attempt(async () => {
    await ask("api/undo", { version: state.version });
    await refresh();
    notice("Judgement undone.", "quiet");
  });
}

async function nextPair(opens = true) {
  const wanted = await attempt(() => get("api/wanted", { query }));
  if (wanted === null || !(opens || $("pair").open)) return;
  const key = (one) => JSON.stringify([one.query_id, one.query, one.document.id]);
  pair = wanted.find((one) => !skipped.has(key(one))) || null;
  if (pair === null) {
    $("pair").close();
    notice(wanted.length ? "You skipped all other pairs." : "There is nothing to judge: the models agree, or you have not searched yet.");
    skipped.clear();
    return;
  }
  pair.key = key(pair);
  const { document: text } = pair;
  $("pair-query").textContent = pair.query;
  $("pair-title").textContent = [text.title, text.section].filter(Boolean).join(" › ") || text.id;
  $("pair-place").textContent = text.place;
  $("pair-text").replaceChildren(...marked(text.text));
  $("pair-text").scrollTop = 0;
  if (!$("pair").open) $("pair").showModal();
  $("pair-text").focus();
}

$("pair-grades").append(...GRADES.map(([name, text], grade) => make("button",
  { type: "button", class: `grade g${grade}`, title: name, on: { click: () => judgePair(grade) } }, text, " ", make("kbd", {}, String(grade)))));

async function judgePair(grade) {
  const judged = pair;
  if (judged === null) return;
  pair = null;  // a doubled click judges nothing twice
  if (await judge(judged.document.id, grade, judged)) await nextPair(false);
  else pair = judged;
}

function skip() {
  if (pair === null) return;
  skipped.add(pair.key);
  nextPair(false);
}

async function readFull(id) {
  const text = await attempt(() => get("api/document", { id, query }));
  if (text === null) return;
  read = id;
  $("reader-title").textContent = text.title || text.id;
  $("reader-place").textContent = [text.place, text.section].filter(Boolean).join(" › ");
  const around = (parts) => (parts.length ? make("div", { class: "around" }, ...marked(parts)) : null);
  const passage = make("div", { class: "passage" }, ...marked(text.text));
  $("reader-text").replaceChildren(...[around(text.before), passage, around(text.after)].filter(Boolean));
  $("reader-grades").replaceChildren(grades(id, text.title || id));
  $("reader").showModal();
  $("reader-text").scrollTop = passage.offsetTop - $("reader-text").offsetTop - 24;
  $("reader-text").focus();
}

// The verdict.

function showVerdict() {
  const { verdict, working, remark } = state;
  $("verdict").classList.toggle("working", working);
  $("remark").textContent = working ? "Updating the verdict …" : remark;
  $("report").disabled = verdict === null;
  if (verdict === null) return;
  $("headline").textContent = verdict.headline;
  const { queries, fewest, more } = verdict;
  $("progress").hidden = false;
  $("bar").max = queries < fewest ? fewest : queries + (more ?? 10000);
  $("bar").value = queries;
  $("progress-text").textContent = progress(verdict);
  const most = Math.max(0.05, ...verdict.pairs.flatMap(({ interval, estimate }) => [estimate || 0, ...(interval || [])].map(Math.abs)));
  $("pairs").replaceChildren(...verdict.pairs.map((one) => comparison(one, Math.min(most, 1))));
  $("details").hidden = false;
  const sentences = [...verdict.sentences, ...verdict.pairs.map(({ a, b, reason }) => `${b} against ${a}: ${reason}.`), ...verdict.trust];
  $("sentences").replaceChildren(...sentences.map((text) => make("li", {}, text)));
}

function progress({ queries, fewest, more, open: undecided }) {
  if (!queries) return "No query is judged yet: this is an estimate from the texts alone.";
  if (!undecided.length) return `Decided by ${plural(queries, "judged query", "judged queries")}.`;
  if (queries < fewest) return `${queries} of ${fewest} judged queries; from ${fewest} on, they can decide by themselves.`;
  if (more === null) return `${queries} judged queries; even 10,000 more would not decide: take the cheaper model.`;
  return `${queries} judged queries; about ${number(more)} more would decide.`;
}

const WORDS = { better: "is better than", worse: "is worse than", "no difference": "is as good as", "cannot tell": "may be better or worse than" };
const SVG = "http://www.w3.org/2000/svg";

function comparison({ a, b, verdict, estimate, interval, answer }, most) {
  const svg = document.createElementNS(SVG, "svg");
  const at = (value) => 100 + (95 * Math.max(-most, Math.min(most, value))) / most;
  const line = (name, values) => {
    const shape = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(values)) shape.setAttribute(key, value);
    svg.append(shape);
  };
  svg.setAttribute("viewBox", "0 0 200 12");
  svg.setAttribute("aria-hidden", "true");
  const known = interval !== null && interval[1] - interval[0] < 2;  // else nothing is known but the scale
  line("line", { x1: 5, x2: 195, y1: 6, y2: 6, class: "axis" });
  line("line", { x1: 100, x2: 100, y1: 0, y2: 12, class: "zero" });
  if (known) line("line", { x1: at(interval[0]), x2: at(interval[1]), y1: 6, y2: 6, class: "interval" });
  if (estimate !== null) line("circle", { cx: at(estimate), cy: 6, r: 3 });
  const span = known ? `, 90% ${interval.map(signed).join(" to ")}` : ", no interval yet";
  const figures = estimate === null ? "" : `${signed(estimate)}${span}`;
  const kind = ["better", "worse"].includes(verdict) ? verdict : "open";
  return make("div", { class: `comparison ${kind}` },
    make("p", {}, make("b", { title: b }, short(b)), " ", make("b", { class: "word" }, WORDS[verdict]), " ", make("b", { title: a }, short(a))),
    svg, make("p", { class: "muted figures", title: "difference in nDCG@10, with a 90% interval" }, figures),
    verdict === "cannot tell" ? make("p", { class: "muted" }, `${answer}.`) : "");
}

async function report() {
  $("report").disabled = true;
  notice("Writing the report …", "quiet");
  const made = await attempt(() => ask("api/report", {}));
  $("report").disabled = false;
  if (made === null) return;
  $("report-link").hidden = false;
  notice(`The report is in ${made.path}.`);
}

// Keys, dialogs, and what happens first.

function move(down, right) {
  const now = document.activeElement.closest(".hit");
  const columns = [...$("columns").children].filter((one) => one.querySelector(".hit"));
  if (!columns.length) return;
  const near = (list, at) => list[Math.max(0, Math.min(list.length - 1, at))];
  const target = near(columns, columns.indexOf(now ? now.closest(".column") : column(shown)) + right);
  open(target.dataset.model);
  const row = now ? [...now.parentElement.children].indexOf(now) + down : 0;
  near([...target.querySelectorAll(".hit")], row).querySelector(".title").focus();
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !$("single").checked) return;
  if (event.target.matches("input:not([type=checkbox])") || $("page").hidden) return;
  const grade = "012".includes(event.key) ? Number(event.key) : event.key === "x" ? null : undefined;
  const hit = document.activeElement.closest(".hit");
  if ($("pair").open) {
    if (grade !== undefined && grade !== null) judgePair(grade);
    else if (event.key === "s") skip();
    else if (event.key === "u") undo();
    else return;
  } else if ($("reader").open) {
    if (grade === undefined) return;
    judge(read, grade);
  } else if ($("keys").open) return;
  else if (grade !== undefined && hit) judge(hit.dataset.id, grade);
  else {
    const acts = { "/": () => $("query").select(), j: () => move(1, 0), k: () => move(-1, 0), h: () => move(0, -1), l: () => move(0, 1), u: undo, n: () => nextPair(), "?": () => $("keys").showModal() };
    if (!(event.key in acts)) return;
    acts[event.key]();
  }
  event.preventDefault();
}

function showLogin(text) {
  $("login").hidden = false;
  $("page").hidden = true;
  $("login-notice").textContent = text;
  $("secret").focus();
}

async function login(secret) {
  try {
    await ask("api/login", { secret });
    $("secret").value = "";
    start();
  } catch (error) {
    showLogin(error.message);
  }
}

async function start() {
  try {
    show(await get("api/state"));
  } catch (error) {
    return showLogin("");
  }
  $("login").hidden = true;
  $("page").hidden = false;
  again();
  if (!query) $("query").focus();
}

const again = () => search(new URLSearchParams(location.search).get("q") || "", false);

addEventListener("popstate", again);
addEventListener("keydown", key);
$("search").addEventListener("submit", (event) => { event.preventDefault(); search($("query").value); });
$("login").addEventListener("submit", (event) => { event.preventDefault(); login($("secret").value); });
$("next").addEventListener("click", () => nextPair());
$("undo").addEventListener("click", undo);
$("skip").addEventListener("click", skip);
$("report").addEventListener("click", report);
$("show-keys").addEventListener("click", () => $("keys").showModal());
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
}
$("single").checked = localStorage.getItem("single") !== "no";
$("single").addEventListener("change", () => localStorage.setItem("single", $("single").checked ? "yes" : "no"));

const token = decodeURIComponent(location.hash.slice(1));
if (token) {
  history.replaceState(null, "", location.pathname + location.search);
  login(token);
} else start();
poll();
