"use strict";
(() => {
  // Tables: a header's button sorts by its column, and the other way round when pressed again.
  const keyOf = (row, column, isNumber) => {
    const value = row.cells[column].dataset.value;
    if (value === undefined) return null;
    return isNumber ? Number(value) : value;
  };
  const sortBy = (table, header) => {
    const column = header.cellIndex;
    const isNumber = header.classList.contains("number");
    const before = header.getAttribute("aria-sort");
    const first = isNumber ? "descending" : "ascending";
    const other = isNumber ? "ascending" : "descending";
    const order = before === first ? other : first;
    for (const cell of header.parentElement.cells) cell.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [keyOf(row, column, isNumber), row]);
    rows.sort(([x], [y]) => {
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (isNumber ? x - y : x < y ? -1 : x > y ? 1 : 0);
    });
    body.append(...rows.map(([, row]) => row));
  };
  // Spreadsheets take what begins with these for formulas; numbers are none.
  const csvCell = (text) => {
    const plain = text.replaceAll("−", "-");
    const safe = /^[=+@-]/.test(plain) && Number.isNaN(Number(plain)) ? `'${text}` : plain;
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const csvOf = (table) => {
    const groups = [...(table.querySelector(".groups")?.cells ?? [])].flatMap((cell) =>
      Array(cell.colSpan).fill(cell.textContent.trim()));
    const header = table.tHead.rows[table.tHead.rows.length - 1];
    const titles = [...header.cells].map((cell, i) => `${groups[i] ?? ""} ${cell.textContent.trim()}`.trim());
    const wide = titles.map((_, i) => [...table.tBodies[0].rows].some((row) => row.cells[i].querySelector(".sub")));
    const cells = [...table.tBodies[0].rows].map((row) => [...row.cells].flatMap((cell, i) =>
      (wide[i] ? [".figure", ".sub"] : [".figure"]).map((part) => cell.querySelector(part)?.textContent.trim() ?? "")));
    const heads = titles.flatMap((title, i) => (wide[i] ? [title, `${title}, more`] : [title]));
    return [heads, ...cells].map((row) => row.map(csvCell).join(",")).join("\r\n") + "\r\n";
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const header = table.tHead.rows[table.tHead.rows.length - 1];
    const kinds = [...header.cells].map((cell) => (cell.classList.contains("number") ? "number" : "text"));
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, i) => cell.classList.add(kinds[i]));
    }
    for (const cell of header.cells) {
      cell.querySelector("button").addEventListener("click", () => sortBy(table, cell));
    }
    const link = table.closest(".scroll").nextElementSibling;
    link.hidden = false;
    link.firstElementChild.addEventListener("click", (event) => {
      event.currentTarget.href = `data:text/csv;charset=utf-8,${encodeURIComponent(csvOf(table))}`;
    });
  }

  // Filters: a list of the values of each column that asks for one; the address keeps the choice.
  for (const tools of document.querySelectorAll(".tools:empty")) {
    const [status, box] = [tools.nextElementSibling, tools.nextElementSibling.nextElementSibling];
    const table = box.querySelector("table");
    const rows = [...table.tBodies[0].rows];
    const textOf = (row, column) => row.cells[column].querySelector(".figure").textContent;
    const lists = [...table.querySelectorAll("th[data-filters]")].map((header) => {
      const list = document.createElement("select");
      const title = header.textContent.trim();
      const values = new Set(rows.map((row) => textOf(row, header.cellIndex)));
      list.append(new Option(`all (${values.size})`, ""), ...[...values].sort().map((value) => new Option(value)));
      const label = document.createElement("label");
      label.append(`${title} `, list);
      tools.append(label);
      return [header.cellIndex, list];
    });
    const apply = () => {
      let count = 0;
      for (const row of rows) {
        row.hidden = !lists.every(([column, list]) => !list.value || list.value === textOf(row, column));
        count += !row.hidden;
      }
      status.textContent = `${count} of ${rows.length} figures`;
    };
    for (const [, list] of lists) list.addEventListener("change", apply);
    tools.hidden = status.hidden = false;
    apply();
  }

  // What a title says is shown by focus, too, and on a touch.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "tooltip");
  document.body.append(tip);
  let explained = null;
  const explain = (element) => {
    explained = element;
    tip.hidden = !element;
    if (!element) return;
    tip.textContent = element.dataset.meaning;
    const box = element.getBoundingClientRect();
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(box.left, room))}px`;
    const below = box.bottom + 6;
    tip.style.top = `${below + tip.offsetHeight > innerHeight ? box.top - tip.offsetHeight - 6 : below}px`;
  };
  for (const element of document.querySelectorAll("[title]")) {
    element.dataset.meaning = element.title;
    element.removeAttribute("title");
    element.setAttribute("aria-describedby", "tip");
    for (const event of ["mouseenter", "focus"]) element.addEventListener(event, () => explain(element));
    for (const event of ["mouseleave", "blur"]) element.addEventListener(event, () => explain(null));
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") explain(null); });
  document.addEventListener("scroll", () => explain(explained), true);

  // On paper everything is open.
  const opened = [];
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details:not([open])")) {
      details.open = true;
      opened.push(details);
    }
  });
  window.addEventListener("afterprint", () => {
    for (const details of opened.splice(0)) details.open = false;
  });

  // Single queries. Text from data only ever becomes the content of a text node.
  const source = document.getElementById("data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const $ = (id) => document.getElementById(id);
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const option = (text, value) => {
    const element = make("option", "", text);
    element.value = value;
    return element;
  };
  const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3);
  let [left, right] = data.pair;
  let current = null;

  const gain = (query) => {
    const [a, b] = [query.scores[left], query.scores[right]];
    return a && b ? b[0] - a[0] : null;
  };
  const change = (query) => {
    const top = (model) => query.documents.filter((_, i) => {
      const rank = query.ranks[model][i];
      return rank > 0 && rank <= data.shown;
    });
    const known = new Set(top(left));
    return data.shown - top(right).filter((id) => known.has(id)).length;
  };
  const judged = data.measures.length > 0 && data.queries.some((query) => gain(query) !== null);
  const orders = judged
    ? {
        "Largest difference": (q) => -Math.abs(gain(q)),
        "Largest gain": (q) => -gain(q),
        "Largest loss": (q) => gain(q),
        "As in the collection": () => 0,
      }
    : { "Most different lists": (q) => -change(q), "As in the collection": () => 0 };

  const move = (here, there, isRight) => {
    if (!there) return isRight ? ["new", "up", `not among the first ${data.known} on the left`]
                               : ["gone", "down", `not among the first ${data.known} on the right`];
    if (here === there) return ["=", "", "at the same rank in the other list"];
    if (!isRight) return [`→ ${there}`, "", `at rank ${there} on the right`];
    const up = there > here;
    return [`${up ? "▲" : "▼"} ${Math.abs(there - here)}`, up ? "up" : "down", `at rank ${there} on the left`];
  };
  // Ranges count characters, and some characters are two of JavaScript's units.
  const marked = (tag, className, text, ranges) => {
    const element = make(tag, className);
    const letters = Array.from(text);
    const part = (from, to) => letters.slice(from, to).join("");
    let end = 0;
    for (let i = 0; i < ranges.length; i += 2) {
      element.append(part(end, ranges[i]), make("mark", "", part(ranges[i], ranges[i + 1])));
      end = ranges[i + 1];
    }
    element.append(part(end));
    return element;
  };
  const hit = (query, i, model, other, isRight) => {
    const [id, title, text] = data.documents[query.documents[i]];
    const rank = query.ranks[model][i];
    const grade = query.grades[i];
    const item = make("li", "hit");
    item.dataset.document = query.documents[i];
    const body = make("div");
    body.append(make("div", "name", title || (text ? "" : id)));
    if (text) {
      const [shown, ranges] = query.snippets[i];
      body.append(marked("div", "text", shown, ranges));
      if (shown !== text) {
        const whole = make("details", "text");
        whole.append(make("summary", "", "Full text"));
        whole.addEventListener("toggle", () => {
          if (whole.children.length === 1) whole.append(marked("p", "", text, query.matches[i]));
        });
        body.append(whole);
      }
    }
    if (title || text) body.append(make("div", "id", id));
    if (grade > 0) {
      item.classList.add("relevant");
      body.append(make("div", "badge", grade > 1 ? `relevant, grade ${grade}` : "relevant"));
    } else if (grade !== null) {
      body.append(make("div", "id", "judged, not relevant"));
    }
    const [sign, way, meaning] = move(rank, query.ranks[other][i], isRight);
    const moved = make("span", `move ${way}`.trim(), sign);
    moved.title = meaning;
    moved.setAttribute("aria-label", meaning);
    moved.setAttribute("role", "img");
    item.append(make("span", "rank", String(rank)), body, moved);
    return item;
  };
  const side = (query, model, other, isRight) => {
    const box = make("div", "side");
    const head = make("h4", "", data.models[model]);
    const scores = query.scores[model];
    if (scores) head.append(make("span", "", `${data.measures[0]} ${scores[0].toFixed(3)}`));
    const list = make("ol");
    query.ranks[model]
      .map((rank, i) => [rank, i])
      .filter(([rank]) => rank > 0 && rank <= data.shown)
      .sort(([x], [y]) => x - y)
      .forEach(([, i]) => list.append(hit(query, i, model, other, isRight)));
    box.append(head, list.children.length ? list : make("p", "note", "No results."));
    return box;
  };
  const light = (event, on) => {
    const item = event.target.closest ? event.target.closest(".hit") : null;
    if (!item) return;
    for (const same of $("query").querySelectorAll(`[data-document="${item.dataset.document}"]`)) {
      same.classList.toggle("same", on);
    }
  };
  $("query").addEventListener("mouseover", (event) => light(event, true));
  $("query").addEventListener("mouseout", (event) => light(event, false));

  const show = (query) => {
    current = query;
    const box = $("query");
    const told = [];
    if (data.judged) told.push(`${query.relevant} relevant ${query.relevant === 1 ? "document" : "documents"}`);
    data.measures.slice(1).forEach((name, i) => {
      const [a, b] = [query.scores[left], query.scores[right]];
      if (a && b) told.push(`${name} ${a[i + 1].toFixed(3)} → ${b[i + 1].toFixed(3)}`);
    });
    const sides = make("div", "sides");
    sides.append(side(query, left, right, false), side(query, right, left, true));
    const parts = [make("h3", "", query.text || query.id)];
    if (query.text) parts.push(make("p", "id", query.id));
    if (told.length) parts.push(make("p", "note", told.join("; ") + "."));
    box.replaceChildren(...parts, sides);
    for (const button of $("query-list").querySelectorAll("button")) {
      button.setAttribute("aria-current", String(button.dataset.id === query.id));
    }
  };
  const list = () => {
    const wanted = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const key = orders[$("order").value];
    const found = data.queries
      .filter((query) => {
        const text = `${query.id} ${query.text}`.toLowerCase();
        return wanted.every((word) => text.includes(word));
      })
      .map((query) => [key(query), query])
      .sort(([x], [y]) => x - y)
      .map(([, query]) => query);
    $("query-list").replaceChildren(
      ...found.map((query) => {
        const item = make("li");
        const button = make("button");
        button.type = "button";
        button.dataset.id = query.id;
        const value = gain(query);
        const tone = value > 0 ? "better" : value < 0 ? "worse" : "";
        const told = value !== null ? (value ? signed(value) : "0") : `${change(query)} new`;
        button.append(make("span", "", query.text || query.id), make("span", `gain ${tone}`.trim(), told));
        button.addEventListener("click", () => show(query));
        item.append(button);
        return item;
      }),
    );
    $("count").textContent = `${found.length} of ${data.queries.length} queries` +
      (judged ? `; numbers: ${data.measures[0]} of the right model minus the left one` : "");
    if (found.length) show(found.includes(current) ? current : found[0]);
    else $("query").replaceChildren(make("p", "note", "No query contains these words."));
  };
  data.models.forEach((name, i) => {
    $("left").append(option(name, i));
    $("right").append(option(name, i));
  });
  for (const name of Object.keys(orders)) $("order").append(option(name, name));
  $("left").value = left;
  $("right").value = right;
  $("left").addEventListener("change", () => { left = Number($("left").value); list(); });
  $("right").addEventListener("change", () => { right = Number($("right").value); list(); });
  $("order").addEventListener("change", () => { current = null; list(); });
  $("search").addEventListener("input", list);
  $("drill-down").hidden = false;
  list();
})();
