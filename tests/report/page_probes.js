// What a person would see at once on a page, found in the browser. Each returns what it found.

// Text with less than the contrast that WCAG 2 asks for (4.5) to what is behind it.
function faint() {
  const parse = (colour) => {
    const numbers = colour.match(/[\d.]+/g).map(Number);
    return numbers.length < 4 ? [...numbers, 1] : numbers;
  };
  const over = (a, b) => [0, 1, 2].map((i) => a[3] * a[i] + (1 - a[3]) * b[i]).concat(1);
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const luminance = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.unshift(parse(getComputedStyle(e).backgroundColor));
    return layers.reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const element = walker.currentNode.parentElement;
    const hidden = element.closest("script, style, noscript, option") || !element.getClientRects().length;
    if (!text || hidden) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const front = over(parse(element instanceof SVGElement ? style.fill : style.color), back);
    const [low, high] = [luminance(front), luminance(back)].sort((x, y) => x - y);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) found.push([text.slice(0, 40), style.color, ratio]);
  }
  return found;
}

const shared = (r, s) => [
  Math.min(r.right, s.right) - Math.max(r.left, s.left),
  Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top),
];
const told = (element) => element.outerHTML.slice(0, 80);

// Neighbours whose boxes overlap.
function overlaps() {
  const groups = [
    "body", "main", "section", ".figures", ".tools", ".columns", ".sides", ".pictures", "figure", ".query",
    ".side", "ol", ".query-list", ".facts", ".facts > div", ".statements", "thead tr", "tbody tr", ".hit",
    ".query-list button",
  ];
  const found = [];
  for (const group of document.querySelectorAll(groups.join(", "))) {
    const boxes = [...group.children]
      .map((element) => [element, element.getBoundingClientRect()])
      .filter(([, box]) => box.width && box.height);
    boxes.forEach(([e, r], i) => boxes.slice(i + 1).forEach(([f, s]) => {
      const [wide, high] = shared(r, s);
      if (wide > 1 && high > 1) found.push([told(group).slice(0, 30), told(e), told(f)]);
    }));
  }
  return found;
}

// Texts of a picture that lie on one another.
function overlapsInPictures() {
  const found = [];
  for (const svg of document.querySelectorAll(".picture svg")) {
    const texts = [...svg.querySelectorAll("text")].map((e) => [e.textContent, e.getBoundingClientRect()]);
    texts.forEach(([t, r], i) => texts.slice(i + 1).forEach(([u, s]) => {
      const [wide, high] = shared(r, s);
      if (wide > 1 && high > 3) found.push([t, u]);
    }));
  }
  return found;
}

// What sticks out of its picture, or of a page that cannot be scrolled sideways.
function cut() {
  const found = [];
  for (const svg of document.querySelectorAll(".picture svg")) {
    const box = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll("text")) {
      const r = text.getBoundingClientRect();
      const [wide, high] = shared(r, box);
      if (wide < r.width - 1 || high < r.height - 1) found.push(["svg", text.textContent]);
    }
  }
  for (const e of document.querySelectorAll("main *:not(svg *)")) {
    if (e.closest(".scroll, .picture, select, option") && !e.matches(".scroll, .picture")) continue;
    const r = e.getBoundingClientRect();
    if (r.width && (r.right > document.documentElement.clientWidth + 1 || r.left < -1)) found.push(told(e));
    const clips = ["hidden", "clip"].includes(getComputedStyle(e).overflowX);
    if (clips && e.scrollWidth > e.clientWidth + 1) found.push(told(e));
  }
  return found;
}

// Buttons, links and fields whose accessible name lacks the words that they show (WCAG 2.5.3).
function otherNames() {
  const words = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  const found = [];
  for (const e of document.querySelectorAll("button[aria-label], a[aria-label], input[aria-label]")) {
    const name = words(e.getAttribute("aria-label"));
    if (!words(e.innerText).every((word) => name.includes(word))) found.push(told(e));
  }
  return found;
}

// Targets of less than 24 by 24 pixels (WCAG 2.5.8); a label counts for its field.
function small() {
  const found = [];
  for (const e of document.querySelectorAll("button, a, input, select, summary, [role=button]")) {
    const target = e.matches("input[type=checkbox]") ? e.closest("label") : e;
    const r = target.getBoundingClientRect();
    const isHidden = !r.width || getComputedStyle(e).visibility === "hidden" || e.closest("[hidden]");
    if (!isHidden && (r.width < 24 || r.height < 24)) found.push([told(target), r.width, r.height]);
  }
  return found;
}
