// Times of a report: the wheel, + and - zoom, dragging and arrow keys move, 0 or a double click shows all.
// Tables: a click on a head sorts, a field above a long table filters its rows.
"use strict";
for (const box of document.querySelectorAll("[data-begin]")) {
  const all = [Number(box.dataset.begin), Number(box.dataset.end)];
  let [begin, end] = all, held = null;
  const curves = box.querySelectorAll("svg.curve svg");
  const axis = box.querySelector("svg.axis"), origin = Number(box.dataset.origin);
  const relative = box.dataset.clock === "";

  function words(at, step) {
    if (relative) return `${+at.toPrecision(6)} s`;
    const text = new Date((at + origin) * 1000);
    return step >= 86400 ? text.toLocaleDateString()
      : text.toLocaleTimeString([], {hourCycle: "h23", hour: "2-digit", minute: "2-digit",
        ...(step < 60 ? {second: "2-digit"} : {}), ...(step < 1 ? {fractionalSecondDigits: 1} : {})});
  }

  function ticks() {
    const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200];
    const most = Math.max(1, Math.min(8, axis.clientWidth / 80));
    let step = steps.find((each) => (end - begin) / each <= most) || 86400;
    while ((end - begin) / step > most) step *= 2;
    const shift = relative ? 0 : origin - new Date(origin * 1000).getTimezoneOffset() * 60;
    axis.replaceChildren();
    for (let at = Math.ceil((begin + shift) / step) * step - shift; at <= end; at += step) {
      const x = `${(at - begin) / (end - begin) * 100}%`;
      const line = document.createElementNS(axis.namespaceURI, "line");
      for (const [name, value] of Object.entries({x1: x, x2: x, y1: 0, y2: 5})) line.setAttribute(name, value);
      const text = document.createElementNS(axis.namespaceURI, "text");
      for (const [name, value] of Object.entries({x, y: 17, dx: 3})) text.setAttribute(name, value);
      text.textContent = at - begin > 0.94 * (end - begin) ? "" : words(at, step);
      axis.append(line, text);
    }
  }

  function place() {
    const share = 100 / (end - begin);
    for (const lane of box.querySelectorAll("svg.lane")) {
      const width = lane.clientWidth;
      for (const one of lane.children) {
        const a = Number(one.dataset.a), b = one.dataset.b === undefined ? all[1] : Number(one.dataset.b);
        const x = (a - begin) * share, far = (b - begin) * share;
        one.style.display = far < 0 || x > 100 ? "none" : "";
        if (one.classList.contains("mark")) { one.setAttribute("x", `${x}%`); continue; }
        const rect = one.querySelector("rect"), text = one.querySelector("text");
        rect.setAttribute("x", `${Math.max(-1, x)}%`);
        rect.setAttribute("width", `${Math.max(0, Math.min(101, far) - Math.max(-1, x))}%`);
        if (!text) continue;
        const seen = Math.max(0, x);
        text.setAttribute("x", `${seen}%`);
        const room = (Math.min(100, far) - seen) * width / 100;
        text.style.display = room > 9 + 7.5 * text.textContent.length ? "" : "none";
      }
    }
    for (const curve of curves) {
      const scale = 1000 / (all[1] - all[0]), height = curve.viewBox.baseVal.height;
      curve.setAttribute("viewBox", `${(begin - all[0]) * scale} 0 ${(end - begin) * scale} ${height}`);
    }
    ticks();
  }

  function show(a, b) {
    const span = Math.max(0.1, Math.min(b - a, all[1] - all[0]));
    begin = Math.min(Math.max(a, all[0]), all[1] - span);
    end = begin + span;
    place();
  }

  const left = () => box.querySelector("svg.lane, svg.curve").getBoundingClientRect();
  function zoom(by, share) {
    const at = begin + share * (end - begin);
    show(at - (at - begin) * by, at + (end - at) * by);
  }
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey && event.deltaX === 0 && !box.matches(":focus-within")) return;
    event.preventDefault();
    const {x, width} = left();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.min(1, Math.max(0, (event.clientX - x) / width)));
  }, {passive: false});
  box.addEventListener("pointerdown", (event) => { held = [event.clientX, begin, end]; });
  addEventListener("pointermove", (event) => {
    if (!held) return;
    const by = (held[0] - event.clientX) / left().width * (held[2] - held[1]);
    show(held[1] + by, held[2] + by);
  });
  addEventListener("pointerup", () => { held = null; });
  box.addEventListener("dblclick", () => show(...all));
  box.addEventListener("keydown", (event) => {
    const by = (end - begin) / 4;
    const acts = {"+": () => zoom(0.5, 0.5), "=": () => zoom(0.5, 0.5), "-": () => zoom(2, 0.5), "0": () => show(...all),
      ArrowLeft: () => show(begin - by, end - by), ArrowRight: () => show(begin + by, end + by)};
    if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
  });
  addEventListener("resize", place);
  place();
}

function sortable(cell) {
  const text = cell?.dataset.v ?? cell?.textContent ?? "", number = Number.parseFloat(text.replaceAll(",", ""));
  return Number.isNaN(number) ? text : number;
}

for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], heads = [...table.querySelectorAll("thead th")];
  if (!heads.length || body.rows.length < 2) continue;
  heads.forEach((head, at) => {
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [sortable(row.cells[at]), row]);
      rows.sort(([a], [b]) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1));
      if (!up) rows.reverse();
      body.append(...rows.map(([, row]) => row));
    };
    head.classList.add("sorts");
    head.tabIndex = 0;
    head.title = "Sort";
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
  if (body.rows.length <= 20) continue;
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = field.ariaLabel = "Filter rows";
  field.addEventListener("input", () => {
    const text = field.value.toLowerCase();
    for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(text);
  });
  table.parentElement.before(field);
}
