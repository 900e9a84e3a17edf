"use strict";

const $ = (id) => document.getElementById(id);
const GRADES = [["not relevant", "No"], ["partly relevant", "Partly"], ["relevant", "Yes"]];
let state = null;
let query = "";
let narrowed = { kind: "", folder: "" };  // files of one suffix, files below one folder
let serial = 0;
let shown = "";  // the model of the tab that is open on a narrow page
let picked = false;  // true once the person has chosen a tab
let focuses = false;  // true until the first result of a search that was typed has the focus
const answers = new Map();  // model to hits, null while the model is not ready
const paces = new Map();  // model to when its encoding was first seen, and how far it was
const skipped = new Set();
let pair = null;
let read = null;
let learning = false;  // true while the models learn or forget

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
  let answer;
  let body;
  try {
    answer = await fetch(path, content === undefined ? {} : post);
    body = await answer.json();
  } catch (error) {
    showLost(true);
    throw new Lost(gone());
  }
  showLost(false);
  if (answer.status === 401) showLogin("");
  if (!answer.ok) throw new Error(body.error);
  return body;
}

/** The program does not answer. */
class Lost extends Error {}

const gone = () => `The program has ended${state ? `. Your judgements are in ${state.log}` : ""}. Start it again, and open the link that it prints.`;

/** Say on top of all, in an open dialog too, that the program does not answer. */
function showLost(lost) {
  for (const place of document.querySelectorAll(".lost")) {
    if (place.hidden === !lost) continue;
    place.textContent = lost ? gone() : "";
    place.hidden = !lost;
  }
}

/** Do something that a person asked for; what goes wrong is shown. */
async function attempt(act) {
  try {
    return await act();
  } catch (error) {
    if (!(error instanceof Lost)) notice(error.message, "wrong");
    return null;
  }
}

const get = (path, given = {}) => ask(`${path}?${new URLSearchParams(given)}`);

// State: how far models and verdict are, and what is judged.

async function poll() {
  let wait = 2000;
  try {
    if (!$("page").hidden && !document.hidden) {
      await refresh();
      if (state.working || state.models.some((model) => !["ready", "failed"].includes(model.state))) wait = 700;
    }
  } catch (error) {
    if (!(error instanceof Lost)) notice(error.message, "wrong");
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
  const before = state;
  state = now;
  if (before === null) begin();
  else if (before.corpus_version !== state.corpus_version) takeInChanges();
  for (const model of state.models) {
    const place = column(model.name);
    place.querySelector(".status").textContent = status(model);
    place.classList.toggle("failed", model.state === "failed");
    const bar = place.querySelector("progress");
    bar.hidden = ["ready", "failed"].includes(model.state);
    if (model.state === "encoding") Object.assign(bar, { max: toEncode(model), value: model.done });
    if (model.state === "ready" && answers.get(model.name) === null) searchWith(model.name, serial);
  }
  showTabs();
  showFilters();
  showLeftOut();
  const { queries, documents } = state.judged;
  $("count").textContent = documents
    ? `${plural(documents, "judgement", "judgements")} of ${plural(queries, "query", "queries")}.`
    : "Nothing is judged yet.";
  $("undo").disabled = !state.can_undo;
  for (const group of document.querySelectorAll(".grades[data-id]")) showGrade(group);
  showProposed();
  showLearned();
  showVerdict();
}

/** Say that the files have changed, and search in them as they are now. */
function takeInChanges() {
  $("size").textContent = plural(state.documents, "text", "texts");
  for (const name of ["kind", "folder"]) $(name).replaceChildren();
  $("left-out").querySelector("ul").replaceChildren();
  if (query) search(query, { remember: false }).then(() => notice(state.corpus_remark, "quiet"));
  else notice(state.corpus_remark, "quiet");
}

/** Queries to ask for someone to whom nothing comes to mind, until something was asked. */
function showProposed() {
  const place = $("proposed");
  const texts = query ? [] : state.proposed;
  place.hidden = !texts.length;
  const shown = [...place.querySelectorAll("button")].map((button) => button.textContent);
  if (JSON.stringify(shown) === JSON.stringify(texts)) return;
  place.querySelectorAll("button").forEach((button) => button.remove());
  for (const text of texts) place.append(" ", make("button", { type: "button", on: { click: () => search(text, { isTyped: true }) } }, text));
}

function status(model) {
  const hits = answers.get(model.name);
  if (model.state === "ready") {
    if (hits && !hits.length) return isNarrowed() ? "Nothing in these files matches." : "No document contains these words.";
    return answers.size ? "" : "ready";
  }
  if (model.state === "encoding") return `encoding: ${number(model.done)} of ${number(toEncode(model))} texts${timeLeft(model)}`;
  return { waiting: "waiting for its turn …", loading: "loading …", failed: model.remark }[model.state];
}

const toEncode = (model) => model.total || state.documents;

/** The time that a model needs to encode the rest, once its pace is known. */
function timeLeft(model) {
  const { name, done, seconds_left: announced } = model;
  const now = performance.now() / 1000;
  if (!paces.has(name)) paces.set(name, [now, done]);
  const [began, before] = paces.get(name);
  const pace = (now - began) / (done - before);  // seconds a text
  const seconds = announced ?? (done > before ? pace * (toEncode(model) - done) : null);
  return seconds === null ? " …" : `, ${duration(seconds)} left`;
}

function duration(seconds) {
  if (seconds < 90) return plural(Math.max(1, Math.round(seconds)), "second", "seconds");
  return seconds < 5400 ? `${Math.round(seconds / 60)} minutes` : `${(seconds / 3600).toFixed(1)} hours`;
}

/** What depends on the models' names, once. */
function begin() {
  const fusions = state.models.filter((model) => model.about === FUSED);
  const others = state.models.filter((model) => model.about !== FUSED);
  $("dataset").textContent = /^[./~]/.test(state.dataset) ? short(state.dataset) : state.dataset;
  $("dataset").title = state.dataset;
  $("size").textContent = plural(state.documents, "text", "texts");
  document.title = `${$("dataset").textContent} – search and judge`;
  for (const { name, about } of state.models) {
    const title = short(name);
    const head = make("h2", { title: name }, title, " ", make("span", { class: "about" }, about === title ? "" : about));
    $("columns").append(make("section", { class: "column", "data-model": name, "aria-label": name }, head,
      make("p", { class: "status" }), make("progress", { "aria-label": `Progress of ${title}`, hidden: true }), make("ol", {})));
  }
  // On a phone one model is shown at a time, and a fusion first.
  for (const { name } of [...fusions, ...others]) {
    const pick = () => { picked = true; open(name); };
    $("tabs").append(make("button", { type: "button", "data-model": name, title: name, on: { click: pick } }, short(name)));
  }
  $("kept").hidden = !state.kept;
  if (state.kept) $("kept").textContent = `Queries that are asked here are kept in ${state.kept}.`;
  openBest();
}

const FUSED = "words and meaning";

/** Open the first tab whose model can answer, unless the person has chosen one. */
function openBest() {
  const isReady = (name) => state.models.some((model) => model.name === name && model.state === "ready");
  const names = [...$("tabs").children].map((tab) => tab.dataset.model);
  if (!picked) open(names.find(isReady) || names[0]);
}

/** Mark the tabs of models that cannot answer yet. */
function showTabs() {
  for (const tab of $("tabs").children) {
    const { state: now } = state.models.find((model) => model.name === tab.dataset.model);
    const mark = { ready: "", failed: " failed" }[now] ?? " …";
    if (tab.textContent !== short(tab.dataset.model) + mark) tab.textContent = short(tab.dataset.model) + mark;
  }
  if (!query) openBest();
}

const isNarrowed = () => Boolean(narrowed.kind || narrowed.folder);

/** List the files of the folder that could not be read, with the reasons. */
function showLeftOut() {
  const { count, files } = state.left_out;
  const list = $("left-out").querySelector("ul");
  $("left-out").hidden = !count;
  if (list.children.length === files.length) return;
  $("left-out").querySelector("summary").textContent = `${plural(count, "file was", "files were")} left out`;
  list.replaceChildren(...files.map(({ file, reason }) => make("li", {}, `${file}: ${reason}`)));
}

/** Offer the kinds and the folders of the files, if there is more than one. */
function showFilters() {
  const { kinds, folders } = state.places;
  const lists = { kind: ["all types", kinds], folder: ["all folders", folders] };
  for (const [name, [all, counts]] of Object.entries(lists)) {
    const select = $(name);
    const isUseful = name === "kind" ? counts.length > 1 : counts.length > 0;
    select.parentElement.hidden = !isUseful;
    if (select.options.length !== counts.length + 1) {
      const options = counts.map(([value, count]) => make("option", { value }, `${value} (${plural(count, "file", "files")})`));
      select.replaceChildren(make("option", { value: "" }, all), ...options);
    }
    select.value = narrowed[name];
  }
  $("filters").hidden = [...$("filters").children].every((label) => label.hidden);
}

const column = (name) => [...$("columns").children].find((one) => one.dataset.model === name);

function open(name) {
  shown = name;
  for (const tab of $("tabs").children) tab.setAttribute("aria-pressed", tab.dataset.model === name);
  for (const one of $("columns").children) one.classList.toggle("open", one.dataset.model === name);
}

// Searching.

/** Search, and put the focus on the first result if the search was typed. */
async function search(text, { remember = true, isTyped = false } = {}) {
  query = text.trim().replace(/\s+/g, " ");
  if (!query || state === null) return;
  $("query").value = query;
  if (remember) history.pushState(null, "", `?${new URLSearchParams(address())}`);
  serial += 1;
  focuses = isTyped;
  $("hint").hidden = true;
  notice("");
  state.grades = {};
  openBest();
  const mine = serial;
  await Promise.all(state.models.map(({ name }) => searchWith(name, mine)));
  if (mine !== serial) return;
  focusFirst([...$("columns").children]);
  attempt(refresh);
}

/** What the address of a search holds. */
function address() {
  const parts = { q: query, ...narrowed };
  return Object.fromEntries(Object.entries(parts).filter(([, value]) => value));
}

async function searchWith(name, mine) {
  answers.set(name, undefined);
  column(name).classList.add("busy");
  const answer = await attempt(() => get("api/search", { model: name, query, ...narrowed }));
  if (mine !== serial) return;
  column(name).classList.remove("busy");
  answers.set(name, answer === null ? undefined : answer.hits);
  const hits = (answer && answer.hits) || [];
  const most = Math.max(...hits.map((hit) => Math.max(hit.dense || 0, hit.lexical || 0)), 1e-9);
  column(name).querySelector("ol").replaceChildren(...hits.map((hit) => card(hit, most)));
  if (answer !== null) column(name).querySelector(".status").textContent = status(answer.model);
  showRanks();
  if (name === firstToRead()) focusFirst([column(name)]);
}

/** The model whose results a person reads first: of the open tab, or of the left column. */
function firstToRead() {
  const ready = state.models.filter((model) => model.state === "ready").map((model) => model.name);
  return getComputedStyle($("tabs")).display === "none" ? ready[0] : shown;
}

/** Put the focus on the first result in some columns, once, if it is still in the search field. */
function focusFirst(columns) {
  const title = columns.map((one) => one.querySelector(".title")).find((one) => one && one.getClientRects().length);
  const hasStayed = document.activeElement === document.body || document.activeElement.closest("#search");
  if (!focuses || !title || !hasStayed) return;
  focuses = false;
  title.focus({ preventScroll: true });
}

function card(hit, most) {
  const title = make("button", { type: "button", class: "title", on: { click: () => readFull(hit.id) } }, hit.title || hit.id);
  const section = hit.section && hit.section !== hit.title ? ` › ${hit.section}` : "";
  const file = hit.file ? fileLink(hit.id, hit.file) : hit.place !== hit.title ? hit.place : "";
  const item = make("li", { class: "hit", "data-id": hit.id },
    make("div", { class: "head" }, make("span", { class: "rank" }, String(hit.rank)), title),
    file || section ? make("p", { class: "place" }, file, section) : null,
    make("p", { class: "snippet" }, ...marked(hit.snippet)),
    why(hit, most),
    make("div", { class: "foot" }, grades(hit.id, hit.title || hit.id), make("span", { class: "others" })));
  const same = (on) => () => document.querySelectorAll(".hit").forEach((other) => other.classList.toggle("same", on && other.dataset.id === hit.id));
  for (const event of ["mouseenter", "focusin"]) item.addEventListener(event, same(true));
  for (const event of ["mouseleave", "focusout"]) item.addEventListener(event, same(false));
  return item;
}

/** A link that opens the file of a document itself. */
function fileLink(id, file) {
  const link = { class: "file", href: `file?${new URLSearchParams({ id })}`, target: "_blank", rel: "noopener", title: "Open the file" };
  return make("a", link, file);
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
    const ranks = [...answers].filter(([name, hits]) => name !== own && hits).map(([name, hits]) => {
      const hit = hits.find(({ id }) => id === item.dataset.id);
      return hit ? `rank ${hit.rank} by ${short(name)}` : null;
    }).filter(Boolean);
    item.querySelector(".others").textContent = ranks.join(", ").replaceAll(", rank", ",");
  }
}

// Judging.

function grades(id, title) {
  const group = make("div", { class: "grades", role: "group", "aria-label": `Judge ${title}`, "data-id": id });
  GRADES.forEach(([name, text], grade) => {
    const press = { "aria-label": `${text}: ${name}`, title: `${name} (${grade})`, "aria-pressed": "false", on: { click: () => judge(id, grade) } };
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
  notice(grade === null ? "Judgement taken back." : `Judged: ${GRADES[grade][0]}.`, "quiet");
  return true;
}

async function undo() {
  await attempt(async () => {
    await ask("api/undo", { version: state.version });
    await refresh();
    notice("Judgement undone.", "quiet");
  });
}

/** What models learned from judgements, and the button that takes it back. */
function showLearned() {
  const { learned, judged } = state;
  $("learn").disabled = learning || !judged.documents;
  $("forget").hidden = !learned.length;
  $("learned").hidden = !learned.length;
  $("learned").replaceChildren(...learned.map(({ model, text, used }) => make("li", used ? {} : { class: "unused" }, make("b", { title: model }, short(model)), `: ${text}.`)));
}

async function learnOrForget(path, before, after) {
  learning = true;
  $("learn").disabled = true;
  notice(before, "quiet");
  const now = await attempt(() => ask(path, {}));
  learning = false;
  if (now === null) return showLearned();
  now.grades = state.grades;
  show(now);
  if (query) await search(query, { remember: false });
  notice(after, "quiet");
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
  { type: "button", class: `grade g${grade}`, "aria-label": `${text} (${grade}): ${name}`, title: name, on: { click: () => judgePair(grade) } }, text, " ", make("kbd", {}, String(grade)))));

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
  $("reader-file").hidden = !text.file;
  if (text.file) $("reader-file").href = fileLink(id, text.file).href;
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
  const judged = plural(queries, "judged query", "judged queries");
  if (!undecided.length) return `Decided by ${judged}.`;
  if (queries < fewest) return `${judged}; from ${fewest} on, they can decide by themselves.`;
  if (more === null) return `${judged}; even 10,000 more would not decide: use the cheaper model.`;
  return `${judged}; about ${number(more)} more would decide.`;
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
  if (event.target.matches("input:not([type=checkbox]), select") || $("page").hidden) return;
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

/** Leave the search field for the results, and keep what is typed there. */
function leaveField(event) {
  if (event.key !== "Escape") return;
  event.preventDefault();
  event.target.blur();
  focuses = true;
  focusFirst([column(firstToRead() || shown), ...$("columns").children]);
  focuses = false;
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
    return $("login").hidden ? showLogin(error.message) : undefined;
  }
  $("login").hidden = true;
  $("page").hidden = false;
  again();
  if (!query) $("query").focus();
}

/** Search for what the address holds. */
function again() {
  const parts = new URLSearchParams(location.search);
  narrowed = { kind: parts.get("kind") || "", folder: parts.get("folder") || "" };
  search(parts.get("q") || "", { remember: false });
}

addEventListener("popstate", again);
addEventListener("keydown", key);
$("search").addEventListener("submit", (event) => { event.preventDefault(); search($("query").value, { isTyped: true }); });
$("query").addEventListener("keydown", leaveField);
for (const name of ["kind", "folder"]) $(name).addEventListener("change", () => {
  narrowed[name] = $(name).value;
  search($("query").value);
});
$("login").addEventListener("submit", (event) => { event.preventDefault(); login($("secret").value); });
$("next").addEventListener("click", () => nextPair());
$("undo").addEventListener("click", undo);
$("learn").addEventListener("click", () => learnOrForget("api/learn", "Learning …", "Learning has finished."));
$("forget").addEventListener("click", () => learnOrForget("api/forget", "Forgetting …", "The models search as before."));
$("skip").addEventListener("click", skip);
$("report").addEventListener("click", report);
$("show-keys").addEventListener("click", () => $("keys").showModal());
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
}
$("single").checked = localStorage.getItem("single") !== "no";
$("single").addEventListener("change", () => localStorage.setItem("single", $("single").checked ? "yes" : "no"));

const token = location.hash.slice(1);  // its characters need no decoding
if (token) {
  history.replaceState(null, "", location.pathname + location.search);
  login(token);
} else start();
poll();
