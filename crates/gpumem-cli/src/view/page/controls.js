// What does not change, the pointer and the keys, and the start.

// ---- What does not change -------------------------------------------------------------------------------------------

function fact(name, value) {
  const box = element("div");
  box.append(element("dt", name), element("dd", value));
  $("facts").append(box);
}

function table(box, rows) {
  box.querySelector("tbody").replaceChildren(...rows.map((cells) => {
    const row = element("tr");
    cells.forEach((text, k) => {
      if (k > 0) return cell(row, text, "n");
      const name = cell(row);
      name.title = text;
      name.append(element("bdi", text));
    });
    return row;
  }));
}

function showFindings() {
  $("name").textContent = meta.name;
  $("what").textContent = [meta.what, meta.file].filter(Boolean).join(" · ");
  if (eventCount > 0) fact("peak live", bytesText(meta.atPeak.length ? totalLive(meta.peak) : 0));
  if (meta.reservedPeak) fact("peak reserved", bytesText(meta.reservedPeak));
  if (meta.limit) fact("limit", bytesText(meta.limit));
  fact("events", countText(eventCount));
  if (times) fact("time", timeText(times[eventCount - 1]));
  fact("refused", countText(refusals.length));
  $("by-holder").textContent = meta.byTag ? "tag" : "size";
  $("axis").hidden = !times;
  $("with-cpp").checked = !meta.frames.some((_, frame) => isPython(frame));
  $("all-frames").hidden = $("with-cpp").checked || meta.frames.every((_, frame) => isPython(frame));
  $("to-refusal").hidden = refusals.length === 0;
  $("to-peak").disabled = eventCount === 0;
  table($("at-peak"), meta.atPeak.map(([name, bytes, count]) => [name, bytesText(bytes), countText(count)]));
  $("at-peak").hidden = meta.atPeak.length === 0;
  if (meta.growth.length > 0) {
    $("grew").hidden = false;
    table($("grew"), meta.growth.map((growth) => [growth.holder, `+${bytesText(growth.bytes)}`, growth.blocks > 0 ? `+${countText(growth.blocks)}` : "larger",
      growth.ns !== null && times ? timeText(growth.ns) : plural(meta.growthEnd - growth.since, "event")]));
  }
  if (refusals.length > 0 || meta.reports.length > 0) {
    $("refused").hidden = false;
    const box = $("refusals");
    const last = refusals[refusals.length - 1];
    if (last !== undefined) {
      const block = blockOf[last];
      const where = times ? `at ${timeText(times[last], times[eventCount - 1])}` : `by event ${countText(last + 1)}`;
      const line = element("p", `${refusals.length > 1 ? `${countText(refusals.length)} requests; the last one` : "One request"}: ${bytesText(sizes[block])} on stream ${streams[block]} `);
      line.append("for ", element("bdi", holderName(block)), ` ${where}.`);
      if (!meta.byTag) line.textContent = line.textContent.replace(/ for .* (?=at |by )/, " ");
      box.append(line);
      const needed = bytesText(totalLive(last) + sizes[block]);
      if (meta.reports.length === 0) box.append(element("p", `The live blocks and the request need ${needed}${meta.limit ? `; the limit is ${bytesText(meta.limit)}` : ""}.`));
    }
    for (const report of meta.reports) box.append(element("pre", report));
  }
  $("notes").replaceChildren(...meta.notes.map((note) => element("li", note)));
}

function totalLive(event) {
  const state = stateAt(event);
  let sum = 0;
  for (let k = 0; k < width1 - 1; k++) sum += state[k];
  return sum;
}

function showLegend() {
  const items = groups.filter((group) => !group.isPending || hasPending()).map((group) => {
    const item = element("li");
    item.append(swatch(group.color), element("bdi", group.name));
    item.title = group.name;
    if (group.peak > 0) item.append(element("span", bytesText(group.peak), "v"));
    return item;
  });
  if (reserved.length > 0) {
    const item = element("li"), mark = swatch("--ink2");
    mark.style.height = "2px";
    item.append(mark, "reserved");
    items.push(item);
  }
  if (refusals.length > 0) {
    const item = element("li"), mark = swatch("--bad");
    mark.style.width = "3px";
    item.append(mark, "refused");
    items.push(item);
  }
  $("legend").replaceChildren(...items);
}
const hasPending = () => kinds.includes(FREE_USED);

// ---- Pointer and keys -------------------------------------------------------------------------------------------------

function placeAt(canvas, clientX) {
  const box = canvas.getBoundingClientRect();
  return Math.max(0, Math.min(1, (clientX - box.left - LEFT) / (box.width - LEFT - RIGHT)));
}

function listen() {
  let drag = null;
  chart.addEventListener("pointerdown", (event) => {
    chart.setPointerCapture(event.pointerId);
    drag = { x: event.clientX, start: viewStart, end: viewEnd, isMoved: false };
  });
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    if (drag) {
      const shift = (drag.x - event.clientX) / (box.width - LEFT - RIGHT) * (drag.end - drag.start);
      if (Math.abs(drag.x - event.clientX) > 3) drag.isMoved = true;
      if (drag.isMoved) { hover = null; $("tip").hidden = true; setView(drag.start + shift, drag.end + shift); return; }
    }
    hover = { x: event.clientX - box.left };
    showTip(placeAt(chart, event.clientX), box);
    draw();
  });
  chart.addEventListener("pointerup", (event) => {
    if (drag && !drag.isMoved && eventCount > 0) {
      const share = placeAt(chart, event.clientX), span = viewEnd - viewStart;
      const width = chart.clientWidth - LEFT - RIGHT;
      choose(Math.max(0, column(viewStart + span * share - span / width / 2, viewStart + span * share + span / width / 2)));
    }
    drag = null;
  });
  chart.addEventListener("pointercancel", () => { drag = null; });
  chart.addEventListener("pointerleave", () => { hover = null; $("tip").hidden = true; draw(); });
  chart.addEventListener("wheel", (event) => {
    event.preventDefault();
    const place = viewStart + (viewEnd - viewStart) * placeAt(chart, event.clientX);
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 1000);
    else zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 400))), place);
  }, { passive: false });
  const jump = (event) => {
    if (event.buttons === 0) return;
    const place = placeAt(overview, event.clientX) * domainEnd, span = viewEnd - viewStart;
    setView(place - span / 2, place + span / 2);
  };
  overview.addEventListener("pointerdown", (event) => { overview.setPointerCapture(event.pointerId); jump(event); });
  overview.addEventListener("pointermove", jump);
  mapCanvas.addEventListener("pointermove", (event) => {
    const block = blockAtPointer(event), tip = $("map-tip");
    tip.hidden = block < 0;
    if (block < 0) return;
    tip.replaceChildren(element("bdi", holderName(block)), ` · ${bytesText(sizes[block])}${isPending(block, moment) ? " · pending" : ""}`, element("br"), addressText(block));
    placeTip(tip, event.clientX - mapCanvas.getBoundingClientRect().left, mapCanvas.clientWidth);
  });
  mapCanvas.addEventListener("pointerleave", () => { $("map-tip").hidden = true; });
  mapCanvas.addEventListener("click", (event) => { const block = blockAtPointer(event); if (block >= 0) pick(block); });
  chart.addEventListener("keydown", onKey);
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input[type=search]") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { event.preventDefault(); $("search").focus(); }
    else if (event.key === "t" || event.key === "T") nextTheme();
    else if (event.key === "p" || event.key === "P") toPeak();
    else if (event.key === "r" || event.key === "R") toRefusal();
  });
  $("blocks").addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-block]");
    if (row) pick(Number(row.dataset.block));
  });
  $("search").addEventListener("input", showBlocks);
  $("zoom-in").addEventListener("click", () => zoom(0.5, middle()));
  $("zoom-out").addEventListener("click", () => zoom(2, middle()));
  $("zoom-all").addEventListener("click", () => setView(0, domainEnd));
  $("to-peak").addEventListener("click", toPeak);
  $("to-refusal").addEventListener("click", toRefusal);
  $("theme").addEventListener("click", nextTheme);
  $("with-cpp").addEventListener("change", () => { shownNodes = null; flameRoot = -1; showFlame(); showBlock(); });
  $("flame-up").addEventListener("click", () => { flameRoot = -1; showFlame(); });
  for (const input of document.querySelectorAll("input[name=by]")) input.addEventListener("change", () => { by = input.value; groupsOfHolders = null; sum(); showLegend(); draw(); showMoment(); });
  for (const input of document.querySelectorAll("input[name=axis]")) input.addEventListener("change", () => { setAxis(input.value); draw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  let isResizing = false;
  new ResizeObserver(() => {
    if (isResizing) return;
    isResizing = true;
    requestAnimationFrame(() => { isResizing = false; draw(); showHeap(); showFlame(); });
  }).observe(document.body);
}

const middle = () => {
  const place = moment >= 0 && eventCount > 0 ? placeOf(moment) : -1;
  return place >= viewStart && place <= viewEnd ? place : (viewStart + viewEnd) / 2;
};

function onKey(event) {
  if (eventCount === 0) return;
  const forward = event.key === "ArrowRight" || event.key === "ArrowUp";
  switch (event.key) {
    case "ArrowLeft": case "ArrowRight": case "ArrowUp": case "ArrowDown":
      if (event.shiftKey) pan(forward ? 0.1 : -0.1);
      else { step(forward ? 1 : -1, event.altKey); reveal(moment); }
      break;
    case "PageUp": pan(-0.9); break;
    case "PageDown": pan(0.9); break;
    case "Home": choose(0); reveal(0); break;
    case "End": choose(eventCount - 1); reveal(eventCount - 1); break;
    case "+": case "=": zoom(0.5, middle()); break;
    case "-": case "_": zoom(2, middle()); break;
    case "0": setView(0, domainEnd); break;
    default: return;
  }
  event.preventDefault();
}

// Moves by about four pixels, and at least by one event.
function step(direction, isOne) {
  if (isOne) return choose(Math.max(0, moment + direction));
  const place = placeOf(Math.max(0, moment)) + direction * (viewEnd - viewStart) / 250;
  const event = eventsBefore(place) - (direction > 0 ? 1 : 0);
  choose(direction > 0 ? Math.max(event, moment + 1) : Math.max(0, Math.min(event, moment - 1)));
}

function toPeak() { choose(meta.peak); reveal(meta.peak); }
function toRefusal() {
  if (refusals.length === 0) return;
  const next = refusals.find((event) => event > moment);
  const event = next === undefined ? refusals[0] : next;
  choose(event); reveal(event);
}

function nextTheme() {
  const root = document.documentElement, order = ["auto", "light", "dark"];
  const next = order[(order.indexOf(root.dataset.theme || "auto") + 1) % 3];
  if (next === "auto") delete root.dataset.theme; else root.dataset.theme = next;
  $("theme").textContent = `Theme: ${next}`;
  $("theme").setAttribute("aria-label", `Theme: ${next === "auto" ? "as the system" : next}`);
  repaint();
}
function repaint() { readColors(); draw(); showHeap(); }

function placeTip(tip, x, width) {
  const isRight = x > width / 2;
  tip.style.left = isRight ? "" : `${x + 14}px`;
  tip.style.right = isRight ? `${width - x + 14}px` : "";
}
function showTip(share, box) {
  if (eventCount === 0) return;
  const span = viewEnd - viewStart, width = box.width - LEFT - RIGHT, place = viewStart + span * share;
  const event = column(place - span / width / 2, place + span / width / 2);
  const state = stateAt(event), tip = $("tip");
  const rows = [];
  const total = element("div", undefined, "row");
  total.append(element("strong", event < 0 ? placeText(0) : placeText(placeOf(event), viewEnd)), element("strong", bytesText(totalLive(event))));
  rows.push(total);
  for (let k = width1 - 1; k >= 0; k--) {
    if (state[k] <= 0) continue;
    const row = element("div", undefined, "row"), name = element("span");
    name.append(swatch(groups[k].color), element("bdi", groups[k].name));
    row.append(name, element("span", bytesText(state[k])));
    rows.push(row);
  }
  const held = reservedAt(event + 1);
  if (held !== undefined) {
    const row = element("div", undefined, "row");
    row.append(element("span", "reserved"), element("span", bytesText(held)));
    rows.push(row);
  }
  tip.replaceChildren(...rows);
  tip.hidden = false;
  placeTip(tip, share * width + LEFT, box.width);
}

// ---- Open -----------------------------------------------------------------------------------------------------------

async function open() {
  load(decode(await unpack()));
  sum();
  readColors();
  setHeights();
  setAxis(times ? "time" : "event");
  viewStart = 0; viewEnd = domainEnd;
  showLegend();
  listen();
  choose(refusals.length > 0 ? refusals[refusals.length - 1] : eventCount > 0 ? meta.peak : -1);
  showFindings();
  requestAnimationFrame(() => requestAnimationFrame(() => { document.documentElement.dataset.openedMs = performance.now().toFixed(0); }));
}

open().catch((error) => {
  const box = $("problem");
  box.hidden = false;
  box.textContent = `This page cannot be shown: ${error.message}. It needs a browser of 2023 or later; write it again with gpumem view if the file was changed.`;
});
