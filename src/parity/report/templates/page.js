// What the page can do beyond being read: sort tables, choose methods, look through all tests and pictures, replay a
// decoding. Text reaches the page as text (textContent), never as markup; the page's policy would refuse markup.
"use strict";

function make(tag, properties = {}, ...inner) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...inner);
  return node;
}

function button(text, onclick) {
  return make("button", { type: "button", textContent: text, onclick });
}

function labelled(text, control) {
  return make("label", {}, text, control);
}

function choiceOf(options, changed, value) {
  const control = make("select", { onchange: changed });
  options.forEach((text, i) => control.append(make("option", { value: i, textContent: text })));
  control.value = value ?? 0;
  return control;
}

function pager(size, draw) { // shows `size` rows at a time, and what turns to others
  let first = 0;
  const status = make("span", { role: "status" });
  const turn = (by) => () => { first += by; draw(); };
  const back = button("earlier", turn(-size));
  const on = button("later", turn(size));
  const begin = () => { first = 0; draw(); };
  const cut = (rows) => {
    const last = Math.min(first + size, rows.length);
    status.textContent = rows.length ? `${first + 1} to ${last} of ${rows.length}` : "none";
    back.disabled = first === 0;
    on.disabled = last >= rows.length;
    return rows.slice(first, last);
  };
  return { controls: [back, status, on], begin, cut };
}

async function unpack(template) {
  const text = atob(template.content.textContent.trim());
  const bytes = Uint8Array.from(text, (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

// --- tables

function sortKey(text) {
  const number = parseFloat(text.replace(/^[<≤~ ]+/, "").replace(/,/g, ""));
  return Number.isNaN(number) ? text.toLowerCase() : number;
}

function compare(a, b) {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1; // figures before words
}

function sortable(table) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [sortKey(row.cells[column].firstElementChild.textContent), row]);
      rows.sort((a, b) => (down ? -1 : 1) * compare(a[0], b[0]));
      body.append(...rows.map(([, row]) => row));
    };
    head.replaceChildren(button(head.textContent, sort));
  });
}

function choose() {
  const methods = [...new Set([...document.querySelectorAll("#verdicts [data-method]")].map((row) => row.dataset.method))];
  if (methods.length < 2) return;
  const hide = () => {
    const left = new Set([...boxes.querySelectorAll("input:not(:checked)")].map((box) => box.value));
    document.querySelectorAll("[data-method]").forEach((row) => (row.hidden = left.has(row.dataset.method)));
  };
  const boxes = make("fieldset", {}, make("legend", { textContent: "Show" }));
  for (const method of methods) {
    const box = make("input", { type: "checkbox", value: method, checked: true, onchange: hide });
    boxes.append(make("label", {}, box, ` ${method}`));
  }
  const summary = make("summary", { textContent: "Choose methods" });
  document.getElementById("choice").append(make("details", {}, summary, boxes));
}

function copyable(cell) {
  const text = cell.firstElementChild.textContent;
  const copy = button("copy", () => {
    navigator.clipboard.writeText(text).then(
      () => (copy.textContent = "copied"),
      () => getSelection().selectAllChildren(cell.firstElementChild),
    );
  });
  copy.className = "copy";
  cell.append(copy);
}

// --- all tests: {headings, rows of entries; an entry is a text, or [text, detail, style]}

const views = {};

views.tests = (box, data) => {
  const parts = (entry) => (typeof entry === "string" ? [entry, "", ""] : entry);
  const lower = data.rows.map((row) => row.map((entry) => parts(entry).slice(0, 2).join(" ")).join(" ").toLowerCase());
  const pick = ["Layer", "Method", "On", "Verdict"].filter((heading) => data.headings.includes(heading));
  const at = pick.map((heading) => data.headings.indexOf(heading));
  const values = at.map((i) => ["all", ...new Set(data.rows.map((row) => parts(row[i])[0]))]);
  let order = null; // column to sort by, and its direction
  const page = pager(50, draw);
  const selects = values.map((options) => choiceOf(options, page.begin));
  const words = make("input", { type: "search", oninput: page.begin });
  const body = make("tbody");
  const heads = data.headings.map((heading, i) => {
    const sort = () => { order = [i, order && order[0] === i ? -order[1] : 1]; page.begin(); };
    return make("th", { scope: "col" }, button(heading, sort));
  });

  function draw() {
    const text = words.value.toLowerCase();
    const kept = data.rows.filter((row, n) => (!text || lower[n].includes(text))
      && selects.every((s, k) => s.value === "0" || parts(row[at[k]])[0] === values[k][s.value]));
    if (order) {
      const key = (row) => sortKey(parts(row[order[0]])[0]);
      kept.sort((a, b) => order[1] * compare(key(a), key(b)));
    }
    heads.forEach((head, i) => {
      if (order && order[0] === i) head.setAttribute("aria-sort", order[1] > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    body.replaceChildren(...page.cut(kept).map((row) => {
      const line = make("tr");
      row.forEach((entry, i) => {
        const [shown, detail, style] = parts(entry);
        const cell = make("td", { className: style, "data-h": data.headings[i] }, make("span", { textContent: shown }));
        if (detail) cell.append(make("small", { textContent: detail }));
        line.append(cell);
      });
      return line;
    }));
  }

  const controls = make("div", { className: "controls" }, ...pick.map((heading, k) => labelled(heading, selects[k])),
    labelled("Words", words), ...page.controls);
  const caption = make("caption", { textContent: data.caption });
  const table = make("table", { className: "data dense" }, caption, make("thead", {}, make("tr", {}, ...heads)), body);
  box.append(controls, table);
  draw();
};

function countPasses(column, row) {
  if (column.unknown) return "unknown";
  return column.kept ? column.kept[row].length : Math.max(...column.step[row]);
}
const figure = (value) => (value === null ? "" : value.toFixed(3));
// --- pictures: {side, across, captions, sheets, columns: [{label, method, sheet, cosine, passes, ...}]}

function cut(canvas, sheet, data, row) {
  const side = data.side;
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = false;
  const x = (row % data.across) * side;
  const y = Math.floor(row / data.across) * side;
  pen.drawImage(sheet, x, y, side, side, 0, 0, canvas.width, canvas.height);
}

views.pictures = async (box, data) => {
  const sheets = await Promise.all(data.sheets.map((uri) => {
    const sheet = new Image();
    sheet.src = uri;
    return sheet.decode().then(() => sheet);
  }));
  replay(box, { ...data, columns: data.columns.filter((column) => !column.unknown) }, sheets);
  browse(box, data, sheets);
};

function browse(box, data, sheets) {
  const all = data.captions.map((_, row) => row);
  const columns = data.columns.filter((c, k) => data.columns.findIndex((other) => other.drawn === c.drawn) === k);
  const rest = columns.filter((column) => !column.plain);
  const orders = ["worst difference of any method", ...rest.map((c) => `difference of ${c.drawn}`),
    ...columns.map((c) => `cosine of ${c.drawn}`)];
  const keys = [data.worst, ...rest.map((c) => c.difference), ...columns.map((c) => c.cosine)];
  const page = pager(6, draw);
  const by = choiceOf(orders, page.begin);
  const heads = columns.map((c) => make("th", { scope: "col", "data-method": c.method, textContent: c.drawn }));
  const head = make("tr", {}, make("th", { scope: "col", textContent: "Prompt" }), ...heads);
  const body = make("tbody");

  function draw() {
    const key = keys[by.value];
    const order = [...all].sort((a, b) => key[a] - key[b]);
    body.replaceChildren(...page.cut(order).map((row) => {
      const caption = make("span", { textContent: data.captions[row] });
      const line = make("tr", {}, make("th", { scope: "row" }, caption, make("small", { textContent: figure(key[row]) })));
      columns.forEach((c, k) => {
        const picture = make("canvas", { width: data.side, height: data.side, role: "img" });
        picture.setAttribute("aria-label", `${c.drawn}: ${data.captions[row]}`);
        cut(picture, sheets[c.sheet], data, row);
        const same = data.columns.filter((other) => other.drawn === c.drawn);
        const passes = [...new Set(same.map((other) => countPasses(other, row)))].join(", ");
        const below = [figure(c.cosine[row]), `${passes} passes`].filter(Boolean).join(", ");
        const cell = make("td", { "data-h": c.drawn }, picture, make("small", { textContent: below }));
        cell.hidden = heads[k].hidden;
        cell.dataset.method = c.method;
        line.append(cell);
      });
      return line;
    }));
  }

  const caption = make("caption", { textContent: data.about });
  const style = columns.length > 16 ? "grid many" : "grid";
  box.append(make("h3", { textContent: "All prompts" }),
    make("div", { className: "controls" }, labelled("Lowest first by", by), ...page.controls),
    make("table", { className: style }, caption, make("thead", {}, head), body));
  const still = box.nextElementSibling; // what is read without scripts
  if (still && still.matches("table.grid") && !box.previousElementSibling.matches(".packed")) still.hidden = true;
  document.getElementById("choice").addEventListener("change", () => setTimeout(draw));
  draw();
}

// --- replay: which places each pass decided. `kept` counts tokens pass by pass where they follow the order of reading,
// else `step` is each place's pass. Nothing is shown that these, and the window, do not say.

const MARKS = { accepted: "became final with the pass, drafted before", drawn: "the target's own draw",
  wasted: "evaluated and not kept", drafted: "drafted for the next pass" };

function passesOf(column, row, tokens) {
  const result = { passes: [], forced: [] };
  if (column.step) {
    column.step[row].forEach((pass, place) => {
      if (pass) (result.passes[pass - 1] ??= []).push(place);
      else result.forced.push(place);
    });
    return result;
  }
  let from = 0;
  for (const count of column.kept[row]) {
    result.passes.push(Array.from({ length: count }, (_, i) => from + i).filter((place) => place < tokens));
    from += count;
  }
  return result;
}

function marksOf(column, places, tokens) {
  const marks = new Map();
  if (column.parallel || column.plain) {
    places.forEach((place) => marks.set(place, "drawn"));
    return marks;
  }
  const begin = places[0];
  const end = begin + places.length;
  places.forEach((place) => marks.set(place, "accepted"));
  if (!column.window || places.length < Math.min(column.window, tokens - begin)) marks.set(end - 1, "drawn");
  if (column.window) {
    for (let place = end; place < Math.min(end + column.window, tokens); place += 1) {
      marks.set(place, place < begin + column.window ? "wasted" : "drafted");
    }
  }
  return marks;
}

function player(data, sheets, column, row, colours) {
  const across = Math.round(Math.sqrt(data.tokens));
  const scale = Math.max(1, Math.floor(320 / across));
  const canvas = make("canvas", { width: across * scale, height: across * scale, role: "img" });
  canvas.setAttribute("aria-label", `${column.label}: ${data.captions[row]}, pass by pass`);
  const { passes, forced } = passesOf(column, row, data.tokens);
  const status = make("p");
  const box = make("div", {}, make("h3", { textContent: column.label }), canvas, status);

  function show(pass) {
    const now = Math.min(pass, passes.length);
    const done = new Set([...forced, ...passes.slice(0, now).flat()]);
    const pen = canvas.getContext("2d");
    cut(canvas, sheets[column.sheet], data, row);
    const fill = (place, colour, alpha) => {
      pen.globalAlpha = alpha;
      pen.fillStyle = colour;
      pen.fillRect((place % across) * scale, Math.floor(place / across) * scale, scale, scale);
    };
    for (let place = 0; place < data.tokens; place += 1) if (!done.has(place)) fill(place, colours.open, 1);
    const places = now && pass <= passes.length ? passes[now - 1] || [] : [];
    for (const [place, mark] of places.length ? marksOf(column, places, data.tokens) : []) fill(place, colours[mark], 0.75);
    pen.globalAlpha = 1;
    const sent = column.nodes[row];
    const wasted = Math.max(0, sent - data.tokens + forced.length);
    status.textContent = `pass ${now} of ${passes.length}; ${done.size} of ${data.tokens} tokens final.`
      + (sent === null ? "" : ` Over the whole image ${sent} tokens are evaluated, ${wasted} of them not kept.`);
  }
  return { box, show, passes: passes.length };
}

function replay(box, data, sheets) {
  const style = getComputedStyle(document.documentElement);
  const colours = Object.fromEntries([...Object.keys(MARKS), "open"].map((n) => [n, style.getPropertyValue(`--${n}`).trim()]));
  const labels = data.columns.map((column) => column.label);
  const fast = data.columns.reduce((best, column, k) => (column.passes < data.columns[best].passes ? k : best), 0);
  const row = choiceOf(data.captions, begin);
  const sides = [choiceOf(labels, begin, 0), choiceOf(labels, begin, fast)];
  const stage = make("div", { className: "replay" });
  const pass = make("input", { type: "range", min: 0, value: 0, oninput: () => show() });
  const play = button("play", toggle);
  let players = [];
  let timer = null;

  function show() { players.forEach((one) => one.show(Number(pass.value))); }
  function stop() { clearInterval(timer); timer = null; play.textContent = "play"; }
  function begin() {
    stop();
    players = sides.map((side) => player(data, sheets, data.columns[side.value], row.value, colours));
    stage.replaceChildren(...players.map((one) => one.box));
    pass.max = Math.max(...players.map((one) => one.passes));
    pass.value = Math.min(12, pass.max);
    show();
  }
  function toggle() {
    if (timer) { stop(); return; }
    if (pass.value === pass.max) pass.value = 0;
    play.textContent = "pause";
    timer = setInterval(() => {
      pass.value = Number(pass.value) + 1;
      show();
      if (pass.value === pass.max) stop();
    }, 80);
  }

  const legend = make("p", { className: "controls" });
  for (const [name, meaning] of Object.entries(MARKS)) {
    const swatch = make("span", { className: "swatch" });
    swatch.style.background = colours[name];
    legend.append(make("span", {}, swatch, ` ${meaning}`));
  }
  box.append(make("h3", { textContent: "Replay of a decoding" }), make("p", { textContent: data.replay }),
    make("div", { className: "controls" }, labelled("Prompt", row), labelled("Left", sides[0]), labelled("Right", sides[1]),
      play, labelled("Pass", pass)), legend, stage);
  begin();
}

// --- narrow screens and pictures

function fold() {
  for (const section of document.querySelectorAll("main > section:not(:first-child)")) {
    const inner = [...section.children], box = make("details", { className: "folded" });
    box.append(make("summary", {}, inner[0]), ...inner.slice(1));
    section.append(box);
    for (const expert of box.querySelectorAll(".expert")) expert.open = true; // one fold is enough
  }
}

function openLinked() { // a link to a section shows what is folded in it
  const section = document.getElementById(location.hash.slice(1));
  section?.querySelectorAll(".folded, .expert").forEach((box) => (box.open = true));
}

function enlarge(event) {
  const shown = document.querySelector(".large");
  shown?.classList.remove("large");
  if (event.target !== shown && event.target.matches?.("figure img, .grid img, .grid canvas, .gallery img, .strip img"))
    event.target.classList.add("large");
}

// --- begin

if (matchMedia("(max-width: 760px)").matches) fold();
addEventListener("hashchange", openLinked);
openLinked();
addEventListener("click", enlarge);
addEventListener("keydown", (event) => { if (event.key === "Escape") enlarge(event); });

document.querySelectorAll("table.data").forEach(sortable);
document.querySelectorAll("td.code").forEach(copyable);
choose();
for (const box of document.querySelectorAll(".packed")) {
  unpack(box.querySelector("template")).then((data) => {
    box.querySelector(".instead").hidden = true;
    return views[box.dataset.view](box, data);
  });
}
