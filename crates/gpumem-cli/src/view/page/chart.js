// The axis, and the pictures of the memory over time.

// ---- The axis -----------------------------------------------------------------------------------------------------------

let axis = "event";
let domainEnd = 1, viewStart = 0, viewEnd = 1, moment = -1;

const placeOf = (event) => axis === "time" ? times[event] : event;
// The number of events before a place, which are at least `low`.
function eventsBefore(place, low = 0) {
  if (axis === "event") return Math.max(0, Math.min(eventCount, Math.ceil(place)));
  let high = eventCount;
  // The columns of a picture are close to each other.
  for (let reach = 16; low + reach < high; reach *= 4) {
    if (times[low + reach] >= place) { high = low + reach; break; }
    low += reach;
  }
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (times[middle] < place) low = middle + 1; else high = middle;
  }
  return low;
}
function reservedAt(event) {
  let low = 0, high = reservedSince.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (reservedSince[middle] <= event) low = middle + 1; else high = middle;
  }
  return low > 0 ? reserved[low - 1] : undefined;
}
const placeText = (place, span = place) => axis === "time" ? timeText(place, span) : `event ${countText(Math.round(place))}`;

function setAxis(next) {
  const first = eventsBefore(viewStart), last = Math.max(first, eventsBefore(viewEnd) - 1);
  const isAll = viewStart <= 0 && viewEnd >= domainEnd;
  axis = next;
  domainEnd = eventCount === 0 ? 1 : axis === "time" ? times[eventCount - 1] : eventCount;
  if (isAll || eventCount === 0) { viewStart = 0; viewEnd = domainEnd; }
  else setView(placeOf(first), placeOf(last));
}

function setView(start, end) {
  const least = axis === "time" ? Math.min(domainEnd, 200) : Math.min(domainEnd, 8);
  let span = Math.min(domainEnd, Math.max(least, end - start));
  start = Math.max(0, Math.min(domainEnd - span, start));
  viewStart = start; viewEnd = start + span;
  draw();
}
function zoom(factor, place) {
  const span = (viewEnd - viewStart) * factor;
  const share = (place - viewStart) / (viewEnd - viewStart);
  setView(place - span * share, place - span * share + span);
}
const pan = (share) => setView(viewStart + (viewEnd - viewStart) * share, viewEnd + (viewEnd - viewStart) * share);

// ---- Painting -----------------------------------------------------------------------------------------------------------

let colors = {};
function readColors() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["surface", "ink", "ink2", "muted", "grid", "line", "free", "pending", "other", "bad", "accent", "page"]) {
    colors[`--${name}`] = style.getPropertyValue(`--${name}`).trim();
  }
  for (let k = 0; k < COLOR_COUNT; k++) colors[`--c${k}`] = style.getPropertyValue(`--c${k}`).trim();
}
const packedColor = (hex) => {
  const bits = parseInt(hex.slice(1), 16);
  return (0xff000000 | (bits & 0xff) << 16 | (bits & 0xff00) | bits >> 16) >>> 0;
};

const chart = $("chart"), overview = $("overview"), mapCanvas = $("map");
let hover = null, isQueued = false;
function draw() {
  if (isQueued) return;
  isQueued = true;
  requestAnimationFrame(() => { isQueued = false; paint(); });
}

function fit(canvas) {
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  const width = Math.max(50, Math.round(canvas.clientWidth * ratio)), height = Math.max(10, Math.round(canvas.clientHeight * ratio));
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  return ratio;
}

const LEFT = 78, RIGHT = 12, TOP = 16, BOTTOM = 24;
let yMax = 1;
function setHeights() {
  let most = peakTotal;
  for (const bytes of reserved) most = Math.max(most, bytes);
  if (meta.limit && meta.limit <= most * 2) most = Math.max(most, meta.limit);
  yMax = Math.max(1, most) * 1.06;
}

// The events of each column of pixels, and the one among them that the column shows: that with the most memory.
const column = (start, end) => columnOf(eventsBefore(start), eventsBefore(end) - 1);
function columnOf(first, last) {
  if (first > last) return first - 1;
  const best = highest(first, last);
  return first > 0 && totals[first - 1] > totals[best] ? first - 1 : best;
}

const images = new Map();
function paintAreas(context, left, top, width, height, from, to) {
  let image = images.get(context);
  if (!image || image.width !== width || image.height !== height) {
    image = context.createImageData(width, height);
    images.set(context, image);
  }
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(packedColor(colors["--surface"]));
  const shades = groups.map((group) => packedColor(colors[group.color]));
  const surface = packedColor(colors["--surface"]);
  let shown = -2;
  const edges = new Int32Array(width1 + 1);
  let first = eventsBefore(from);
  for (let x = 0; x < width; x++) {
    const next = eventsBefore(from + (to - from) * (x + 1) / width, first);
    const event = columnOf(first, next - 1);
    first = next;
    if (event !== shown) {
      shown = event;
      const state = stateAt(event);
      let sumBytes = 0;
      edges[0] = height;
      for (let k = 0; k < width1; k++) {
        sumBytes += state[k];
        edges[k + 1] = Math.max(0, Math.round(height * (1 - sumBytes / yMax)));
      }
    }
    for (let k = 0; k < width1; k++) {
      const end = edges[k], shade = shades[k], isHatched = groups[k].isPending;
      for (let y = edges[k + 1]; y < end; y++) pixels[y * width + x] = isHatched && ((x + y) & 7) < 3 ? surface : shade;
    }
  }
  context.putImageData(image, left, top);
}

function niceStep(span, count) {
  const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  for (const factor of [1, 2, 5, 10]) if (power * factor >= rough) return power * factor;
  return rough;
}
function niceBytes(span, count) {
  let step = 1;
  while (step * count < span) step *= 2;
  return step;
}

function paint() {
  const ratio = fit(chart), context = chart.getContext("2d", { alpha: false });
  const left = Math.round(LEFT * ratio), top = Math.round(TOP * ratio);
  const width = chart.width - left - Math.round(RIGHT * ratio), height = chart.height - top - Math.round(BOTTOM * ratio);
  context.fillStyle = colors["--surface"];
  context.fillRect(0, 0, chart.width, chart.height);
  const toX = (place) => left + width * (place - viewStart) / (viewEnd - viewStart);
  const toY = (bytes) => top + height * (1 - bytes / yMax);
  if (eventCount > 0) paintAreas(context, left, top, width, height, viewStart, viewEnd);
  context.font = `${12 * ratio}px system-ui, "DejaVu Sans", sans-serif`;
  context.lineWidth = ratio;
  context.textBaseline = "middle"; context.textAlign = "right";
  const stepY = niceBytes(yMax, 5);
  for (let bytes = 0; bytes <= yMax; bytes += stepY) {
    context.globalAlpha = bytes === 0 ? 1 : 0.55;
    context.fillStyle = colors[bytes === 0 ? "--line" : "--grid"];
    context.fillRect(left, Math.round(toY(bytes)), width, ratio);
    context.globalAlpha = 1;
    context.fillStyle = colors["--muted"];
    context.fillText(bytes === 0 ? "0" : bytesText(bytes).replace(/\.?0+(?= )/, ""), left - 8 * ratio, toY(bytes));
  }
  context.textBaseline = "top"; context.textAlign = "center";
  const step = niceStep(viewEnd - viewStart, Math.max(2, width / ratio / 150));
  for (let place = Math.ceil(viewStart / step) * step; place <= viewEnd; place += step) {
    const x = toX(place);
    if (x > left + width - 30 * ratio) continue;
    context.fillStyle = colors["--line"];
    context.fillRect(Math.round(x), top + height, ratio, 4 * ratio);
    context.fillStyle = colors["--muted"];
    const text = place === 0 ? "0" : axis === "time" ? timeText(place, viewEnd).replace(/(\.\d*?)0+(?= )/, "$1").replace(/\.(?= )/, "") : countText(place);
    context.fillText(text, x, top + height + 7 * ratio);
  }
  paintReserved(context, toX, toY, left, width, ratio);
  if (meta.limit) paintLimit(context, toY, left, width, ratio);
  paintRefusals(context, toX, top, height, ratio);
  if (moment >= 0 && eventCount > 0) {
    const x = Math.round(toX(placeOf(moment)));
    if (x >= left && x <= left + width) {
      context.fillStyle = colors["--ink"];
      context.fillRect(x - ratio / 2, top, Math.max(1, 1.5 * ratio), height);
      context.beginPath();
      context.moveTo(x, top + 2 * ratio); context.lineTo(x - 6 * ratio, top - 8 * ratio); context.lineTo(x + 6 * ratio, top - 8 * ratio);
      context.fill();
    }
  }
  if (hover) {
    context.globalAlpha = 0.45;
    context.fillStyle = colors["--ink"];
    context.fillRect(Math.round(hover.x * ratio), top, ratio, height);
    context.globalAlpha = 1;
  }
  paintOverview();
}

function paintReserved(context, toX, toY, left, width, ratio) {
  if (reserved.length === 0) return;
  context.strokeStyle = colors["--ink2"];
  context.lineWidth = 1.5 * ratio;
  context.beginPath();
  let isBegun = false;
  for (let x = 0; x <= width; x += 2) {
    const place = viewStart + (viewEnd - viewStart) * x / width;
    const bytes = reservedAt(eventsBefore(place));
    if (bytes === undefined) continue;
    if (isBegun) context.lineTo(left + x, toY(bytes)); else context.moveTo(left + x, toY(bytes));
    isBegun = true;
  }
  context.stroke();
}

function paintLimit(context, toY, left, width, ratio) {
  if (meta.limit > yMax) return;
  const y = Math.round(toY(meta.limit));
  context.strokeStyle = colors["--bad"];
  context.lineWidth = 1.5 * ratio;
  context.setLineDash([6 * ratio, 4 * ratio]);
  context.beginPath(); context.moveTo(left, y); context.lineTo(left + width, y); context.stroke();
  context.setLineDash([]);
  context.fillStyle = colors["--bad"]; context.textAlign = "left"; context.textBaseline = "bottom";
  context.fillText(`limit ${bytesText(meta.limit)}`, left + 6 * ratio, y - 2 * ratio);
}

function paintRefusals(context, toX, top, height, ratio) {
  if (refusals.length === 0) return;
  context.fillStyle = colors["--bad"];
  let last = -1e9;
  let low = 0, high = refusals.length;
  while (low < high) { const middle = (low + high) >>> 1; if (placeOf(refusals[middle]) < viewStart) low = middle + 1; else high = middle; }
  for (let k = low; k < refusals.length && placeOf(refusals[k]) <= viewEnd; k++) {
    const x = toX(placeOf(refusals[k]));
    if (x - last < 2) continue;
    last = x;
    context.globalAlpha = 0.75;
    context.fillRect(Math.round(x), top, ratio, height);
    context.globalAlpha = 1;
    context.beginPath();
    context.moveTo(x, top + height - 9 * ratio); context.lineTo(x - 5 * ratio, top + height); context.lineTo(x + 5 * ratio, top + height);
    context.fill();
  }
}

let overviewImage = null, overviewKey = "";
function paintOverview() {
  const ratio = fit(overview), context = overview.getContext("2d", { alpha: false });
  const left = Math.round(LEFT * ratio), width = overview.width - left - Math.round(RIGHT * ratio), height = overview.height;
  context.fillStyle = colors["--surface"];
  context.fillRect(0, 0, overview.width, height);
  if (eventCount === 0) return;
  // Painted once; a new colour, axis or size makes a new one.
  const key = [by, axis, width, height, colors["--surface"]].join();
  if (key !== overviewKey) {
    paintAreas(context, left, 0, width, height, 0, domainEnd);
    overviewImage = context.getImageData(left, 0, width, height);
    overviewKey = key;
  }
  context.putImageData(overviewImage, left, 0);
  const x0 = left + width * viewStart / domainEnd, x1 = left + width * viewEnd / domainEnd;
  context.fillStyle = colors["--surface"]; context.globalAlpha = 0.7;
  context.fillRect(left, 0, x0 - left, height); context.fillRect(x1, 0, left + width - x1, height);
  context.globalAlpha = 1;
  context.strokeStyle = colors["--ink2"]; context.lineWidth = ratio;
  context.strokeRect(x0 + ratio / 2, ratio / 2, Math.max(3 * ratio, x1 - x0 - ratio), height - ratio);
}

