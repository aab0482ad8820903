"use strict";
// The page of `gpumem view`. Text of the record reaches the page by textContent only.

const $ = (id) => document.getElementById(id);
const element = (name, text, className) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
};
const ALLOC = 0, FREE = 1, FREE_USED = 2, COMPLETE = 3, REFUSED = 4;
const NEVER = 0xffffffff;
const COLOR_COUNT = 8;
const LEAF = 32; // events between two checkpoints
const ROW_COUNT_MAX = 200;

// ---- Numbers as text ------------------------------------------------------------------------------------------------

function bytesText(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0, value = bytes;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit++; }
  return unit === 0 ? `${value} bytes` : `${value >= 100 ? value.toFixed(1) : value >= 10 ? value.toFixed(2) : value.toFixed(3)} ${units[unit]}`;
}
const countText = (count) => count.toLocaleString("en-US");
function timeText(ns, span = ns) {
  span = Math.abs(span);
  if (span >= 120e9) {
    const seconds = ns / 1e9;
    return `${Math.floor(seconds / 60)} min ${(seconds % 60).toFixed(span >= 1200e9 ? 0 : 2)} s`;
  }
  const [unit, scale] = span >= 1e9 ? ["s", 1e9] : span >= 1e6 ? ["ms", 1e6] : span >= 1e3 ? ["µs", 1e3] : ["ns", 1];
  return `${(ns / scale).toFixed(scale === 1 ? 0 : 3)} ${unit}`;
}
const plural = (count, word) => `${countText(count)} ${word}${count === 1 ? "" : "s"}`;

// ---- The record -----------------------------------------------------------------------------------------------------

const meta = JSON.parse($("meta").textContent);

async function unpack() {
  const text = $("data").textContent.trim();
  let packed;
  if (Uint8Array.fromBase64) packed = Uint8Array.fromBase64(text);
  else {
    const binary = atob(text);
    packed = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) packed[i] = binary.charCodeAt(i);
  }
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Numbers of 53 bits: the high ones by multiplication, as shifts have 32 bits.
function decode(bytes) {
  let at = 0;
  const columns = {};
  const signed = new Set(["times", "addresses", "reservedSince"]);
  const small = { kinds: Uint8Array, ago: Uint32Array, holders: Uint32Array, streams: Uint16Array, stacks: Uint32Array, callers: Uint32Array, frames: Uint32Array };
  for (const [name, count] of meta.columns) {
    const column = new (small[name] || Float64Array)(count);
    const isSigned = signed.has(name);
    let last = 0;
    for (let i = 0; i < count; i++) {
      let byte = bytes[at++], value = byte & 0x7f;
      if (byte >= 0x80) {
        let scale = 128;
        do { byte = bytes[at++]; value += (byte & 0x7f) * scale; scale *= 128; } while (byte >= 0x80);
      }
      if (isSigned) {
        last += value % 2 === 0 ? value / 2 : -(value + 1) / 2;
        value = last;
      }
      column[i] = value;
    }
    columns[name] = column;
  }
  return columns;
}

let kinds, times, sizes, holders, streams, addresses, stacks, callers, frames, reservedSince, reserved;
let eventCount, blockCount, blockOf, allocAt, freeAt, completeAt;
const refusals = [];

function load(columns) {
  ({ kinds, times, sizes, holders, streams, addresses, stacks, callers, frames, reservedSince, reserved } = columns);
  eventCount = kinds.length;
  blockCount = sizes.length;
  if (times.length < eventCount || eventCount === 0 || times[eventCount - 1] === 0) times = null;
  blockOf = new Uint32Array(eventCount);
  allocAt = new Uint32Array(blockCount);
  freeAt = new Uint32Array(blockCount).fill(NEVER);
  completeAt = new Uint32Array(blockCount).fill(NEVER);
  let next = 0, free = 0;
  for (let i = 0; i < eventCount; i++) {
    const kind = kinds[i];
    let block;
    if (kind === ALLOC || kind === REFUSED) {
      block = next++;
      allocAt[block] = i;
      if (kind === REFUSED) { freeAt[block] = completeAt[block] = i; refusals.push(i); }
    } else {
      block = next - 1 - columns.ago[free++];
      if (kind !== COMPLETE) freeAt[block] = i;
      if (kind !== FREE_USED) completeAt[block] = i;
    }
    blockOf[i] = block;
  }
}

const holderName = (block) => meta.holders[holders[block]];
const isLive = (block, moment) => allocAt[block] <= moment && moment < freeAt[block];
const isPending = (block, moment) => freeAt[block] <= moment && moment < completeAt[block];

// ---- Series: the memory of each group of blocks after each event ------------------------------------------------------

let groups, groupOfBlock, width1, checkpoints, totals, tree, treeLeaves, peakTotal;
let by = "holder";

// The groups with the highest peaks have colours; all others are one.
function group() {
  const keys = by === "holder" ? holders : streams;
  const keyCount = by === "holder" ? meta.holders.length : Math.max(1, meta.streams);
  const live = new Float64Array(keyCount), peaks = new Float64Array(keyCount);
  for (let i = 0; i < eventCount; i++) {
    const block = blockOf[i], key = keys[block], kind = kinds[i];
    if (kind === ALLOC) { live[key] += sizes[block]; if (live[key] > peaks[key]) peaks[key] = live[key]; }
    else if (kind === FREE || kind === FREE_USED) live[key] -= sizes[block];
  }
  const order = Array.from(peaks.keys()).filter((key) => peaks[key] > 0).sort((a, b) => peaks[b] - peaks[a] || a - b);
  const shown = order.slice(0, COLOR_COUNT);
  const name = (key) => by === "holder" ? meta.holders[key] : `stream ${key}`;
  groups = shown.map((key, color) => ({ name: name(key), color: `--c${color}`, peak: peaks[key] }));
  if (order.length > shown.length) {
    const rest = order.length - shown.length;
    groups.push({ name: plural(rest, "other"), color: "--other", peak: NaN });
  }
  const numbers = new Uint8Array(keyCount).fill(groups.length - 1);
  shown.forEach((key, number) => { numbers[key] = number; });
  groups.push({ name: "freed, in use by another stream", color: "--pending", peak: NaN, isPending: true });
  groupOfBlock = new Uint8Array(blockCount);
  for (let block = 0; block < blockCount; block++) groupOfBlock[block] = numbers[keys[block]];
}

function apply(vector, offset, i) {
  const block = blockOf[i], size = sizes[block];
  switch (kinds[i]) {
    case ALLOC: vector[offset + groupOfBlock[block]] += size; break;
    case FREE: vector[offset + groupOfBlock[block]] -= size; break;
    case FREE_USED: vector[offset + groupOfBlock[block]] -= size; vector[offset + width1 - 1] += size; break;
    case COMPLETE: if (freeAt[block] < i) vector[offset + width1 - 1] -= size; break;
  }
}

// A checkpoint before every LEAF events; the total after each event; a tree of the highest total over ranges of leaves.
function sum() {
  group();
  width1 = groups.length;
  const leafCount = Math.ceil(eventCount / LEAF);
  checkpoints = new Float64Array((leafCount + 1) * width1);
  const vector = new Float64Array(width1);
  const isFirst = !totals;
  if (isFirst) {
    totals = new Float64Array(eventCount);
    treeLeaves = 1;
    while (treeLeaves < leafCount) treeLeaves *= 2;
    tree = new Int32Array(2 * treeLeaves).fill(-1);
  }
  let total = 0;
  for (let i = 0; i < eventCount; i++) {
    if (i % LEAF === 0) checkpoints.set(vector, i / LEAF * width1);
    apply(vector, 0, i);
    if (isFirst) {
      const kind = kinds[i];
      if (kind === ALLOC) total += sizes[blockOf[i]];
      else if (kind === FREE || (kind === COMPLETE && freeAt[blockOf[i]] < i)) total -= sizes[blockOf[i]];
      totals[i] = total;
      const leaf = treeLeaves + Math.floor(i / LEAF);
      if (tree[leaf] < 0 || total > totals[tree[leaf]]) tree[leaf] = i;
    }
  }
  if (isFirst) {
    for (let node = treeLeaves - 1; node >= 1; node--) tree[node] = higher(tree[2 * node], tree[2 * node + 1]);
    peakTotal = eventCount > 0 ? totals[tree[1]] : 0;
  }
}

const higher = (a, b) => (b < 0 || (a >= 0 && totals[a] >= totals[b]) ? a : b);

// The event with the highest total among those from `first` to `last`.
function highest(first, last) {
  let best = -1;
  const firstLeaf = Math.ceil(first / LEAF), endLeaf = Math.floor((last + 1) / LEAF);
  if (firstLeaf >= endLeaf) {
    for (let i = first; i <= last; i++) best = higher(best, i);
    return best;
  }
  for (let i = first; i < firstLeaf * LEAF; i++) best = higher(best, i);
  for (let i = endLeaf * LEAF; i <= last; i++) best = higher(best, i);
  let low = firstLeaf + treeLeaves, high = endLeaf + treeLeaves;
  while (low < high) {
    if (low & 1) best = higher(best, tree[low++]);
    if (high & 1) best = higher(best, tree[--high]);
    low >>= 1; high >>= 1;
  }
  return best;
}

const scratch = new Float64Array(16);
// The memory of each group after an event; -1 is the beginning.
function stateAt(event) {
  if (event < 0) { scratch.fill(0); return scratch; }
  const leaf = Math.floor(event / LEAF);
  for (let k = 0; k < width1; k++) scratch[k] = checkpoints[leaf * width1 + k];
  for (let i = leaf * LEAF; i <= event; i++) apply(scratch, 0, i);
  return scratch;
}

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

// ---- The moment -----------------------------------------------------------------------------------------------------------

let live = [], pendingBytes = 0, chosen = -1, flameRoot = -1, isMomentQueued = false;

function choose(event) {
  moment = Math.max(-1, Math.min(eventCount - 1, event));
  draw();
  if (isMomentQueued) return;
  isMomentQueued = true;
  requestAnimationFrame(() => { isMomentQueued = false; showMoment(); });
}

function reveal(event) {
  if (event < 0) return;
  const place = placeOf(event);
  if (place < viewStart || place > viewEnd) setView(place - (viewEnd - viewStart) / 2, place + (viewEnd - viewStart) / 2);
}

function momentText() {
  if (eventCount === 0) return "No events";
  const number = `after event ${countText(moment + 1)} of ${countText(eventCount)}`;
  const text = times ? `At ${timeText(moment < 0 ? 0 : times[moment], times[eventCount - 1])}, ${number}` : `A${number.slice(1)}`;
  return moment >= 0 && kinds[moment] === REFUSED ? `${text}: a request is refused` : text;
}

function showMoment() {
  const liveBlocks = [];
  let bytes = 0;
  pendingBytes = 0;
  const byHolder = new Map();
  for (let block = 0; block < blockCount && allocAt[block] <= moment; block++) {
    if (moment < freeAt[block]) {
      liveBlocks.push(block);
      bytes += sizes[block];
      const sum = byHolder.get(holders[block]);
      if (sum) { sum[0] += sizes[block]; sum[1]++; } else byHolder.set(holders[block], [sizes[block], 1, groupOfBlock[block]]);
    } else if (moment < completeAt[block]) pendingBytes += sizes[block];
  }
  live = liveBlocks;
  const text = momentText();
  $("h-moment").textContent = text;
  chart.setAttribute("aria-valuemin", "0");
  chart.setAttribute("aria-valuemax", String(eventCount));
  chart.setAttribute("aria-valuenow", String(moment + 1));
  chart.setAttribute("aria-valuetext", `${text}, ${bytesText(bytes)} live`);
  const sums = [`${bytesText(bytes)} live in ${plural(live.length, "block")}`];
  if (pendingBytes > 0) sums.push(`${bytesText(pendingBytes)} freed, in use by another stream`);
  const held = reservedAt(moment + 1);
  if (held !== undefined) sums.push(`${bytesText(held)} reserved`);
  if (moment >= 0 && kinds[moment] === REFUSED) sums.push(`${bytesText(sizes[blockOf[moment]])} asked for`);
  $("sums").textContent = sums.join(" · ");
  showHolders(byHolder, bytes);
  showBlocks();
  showHeap();
  showFlame();
}

function swatch(color) {
  const made = element("span", undefined, color === "--page" ? "swatch faint" : "swatch");
  made.style.background = `var(${color})`;
  made.setAttribute("aria-hidden", "true");
  return made;
}
function cell(row, text, className) {
  const made = element("td", text, className);
  row.append(made);
  return made;
}

function showHolders(byHolder, bytes) {
  const list = [...byHolder].sort((a, b) => b[1][0] - a[1][0]);
  const rows = list.slice(0, 10).map(([holder, [own, count]]) => {
    const row = element("tr");
    const name = cell(row);
    const key = by === "holder" ? groups[groupOfHolder(holder)].color : "--line";
    name.append(swatch(key), element("bdi", meta.holders[holder]));
    name.title = meta.holders[holder];
    cell(row, bytesText(own), "n");
    cell(row, countText(count), "n");
    cell(row, `${(100 * own / Math.max(1, bytes)).toFixed(1)} %`, "n");
    return row;
  });
  if (list.length > 10) {
    const rest = list.slice(10);
    const row = element("tr");
    cell(row, plural(rest.length, "other"));
    const own = rest.reduce((sum, [, [size]]) => sum + size, 0);
    cell(row, bytesText(own), "n");
    cell(row, countText(rest.reduce((sum, [, [, count]]) => sum + count, 0)), "n");
    cell(row, `${(100 * own / Math.max(1, bytes)).toFixed(1)} %`, "n");
    rows.push(row);
  }
  $("holders").tBodies[0].replaceChildren(...rows);
}

let groupsOfHolders = null;
function groupOfHolder(holder) {
  if (!groupsOfHolders) {
    groupsOfHolders = new Uint8Array(meta.holders.length).fill(Math.max(0, groups.length - 2));
    for (let block = 0; block < blockCount; block++) groupsOfHolders[holders[block]] = groupOfBlock[block];
  }
  return groupsOfHolders[holder];
}

function addressText(block) {
  if (!addresses || addresses[block] === 0) return "";
  return "0x" + (BigInt("0x" + meta.base) + BigInt(addresses[block] - 1)).toString(16);
}
const ageText = (block) => times ? timeText(times[moment] - times[allocAt[block]]) : plural(moment - allocAt[block], "event");

function showBlocks() {
  const wanted = $("search").value.trim().toLowerCase();
  let found = live;
  if (wanted) {
    const isWanted = meta.holders.map((name) => name.toLowerCase().includes(wanted));
    found = live.filter((block) => isWanted[holders[block]] || bytesText(sizes[block]).toLowerCase().includes(wanted)
      || String(sizes[block]) === wanted || (wanted.length > 2 && addressText(block).includes(wanted)));
  }
  const largest = found.length > 5000 ? largestOf(found, ROW_COUNT_MAX) : [...found].sort(bySize).slice(0, ROW_COUNT_MAX);
  const rows = largest.map((block) => {
    const row = element("tr");
    row.dataset.block = block;
    row.setAttribute("aria-selected", String(block === chosen));
    const button = element("button");
    button.type = "button";
    button.append(swatch(groups[groupOfBlock[block]].color), element("bdi", holderName(block)));
    button.title = holderName(block);
    cell(row).append(button);
    cell(row, bytesText(sizes[block]), "n");
    cell(row, String(streams[block]), "n");
    cell(row, ageText(block), "n");
    cell(row, addressText(block) || "–", "n");
    return row;
  });
  $("blocks").tBodies[0].replaceChildren(...rows);
  const isCut = found.length > largest.length;
  $("more").textContent = isCut ? `The largest ${ROW_COUNT_MAX} of ${countText(found.length)} blocks` : wanted ? `${plural(found.length, "block")} found` : "";
  showBlock();
}
const bySize = (a, b) => sizes[b] - sizes[a] || a - b;
// The largest of many without sorting all.
function largestOf(list, count) {
  let best = [];
  for (let start = 0; start < list.length; start += 4096) {
    best = best.concat(list.slice(start, start + 4096)).sort(bySize).slice(0, count);
  }
  return best;
}

function frameText(number) {
  const [file, line, name] = meta.frames[number];
  return file ? `${name}  ${file}${line ? `:${line}` : ""}` : name;
}

function showBlock() {
  const box = $("block");
  if (chosen < 0 || chosen >= blockCount) { box.hidden = true; return; }
  box.hidden = false;
  const block = chosen;
  const facts = [bytesText(sizes[block]), `stream ${streams[block]}`];
  if (addressText(block)) facts.push(addressText(block));
  const at = (event) => times ? `at ${timeText(times[event], times[eventCount - 1])}` : `by event ${countText(event + 1)}`;
  facts.push(`allocated ${at(allocAt[block])}`);
  facts.push(freeAt[block] === NEVER ? "never freed" : `freed ${at(freeAt[block])}`);
  if (freeAt[block] !== NEVER && completeAt[block] !== NEVER && completeAt[block] > freeAt[block]) facts.push(`reusable ${at(completeAt[block])}`);
  if (!isLive(block, moment)) facts.push(isPending(block, moment) ? "pending at this moment" : "not live at this moment");
  const title = element("p");
  const name = element("strong"), tag = element("bdi", holderName(block));
  tag.id = "block-tag";
  name.append(tag);
  title.append(name);
  const parts = [title, element("p", facts.join(" · "))];
  if (stacks && stacks[block] > 0) {
    const list = element("ol");
    let node = stacks[block] - 1;
    const isAll = $("with-cpp").checked;
    for (let depth = 0; depth < 400; depth++) {
      if (isAll || isPython(frames[node])) list.append(element("li", frameText(frames[node])));
      if (callers[node] === 0) break;
      node -= callers[node];
    }
    if (list.childElementCount > 0) parts.push(list);
  }
  box.replaceChildren(...parts);
}

function pick(block) {
  chosen = block;
  for (const row of $("blocks").tBodies[0].rows) row.setAttribute("aria-selected", String(Number(row.dataset.block) === block));
  showBlock();
  showHeap();
}

// ---- The heap -----------------------------------------------------------------------------------------------------------

const MAP_ROW = 12, MAP_GAP = 3;
let mapStarts = null, mapSpan = 0, mapRows = 0, mapCells = 0;

// Where a block is among the regions, one behind another.
function mapPlace(address) {
  let low = 0, high = meta.regions.length;
  while (low < high) { const middle = (low + high) >>> 1; if (meta.regions[middle][0] <= address) low = middle + 1; else high = middle; }
  return low === 0 ? -1 : mapStarts[low - 1] + address - meta.regions[low - 1][0];
}
let places = null;
function mapPlaces() {
  mapStarts = new Float64Array(meta.regions.length);
  meta.regions.forEach(([start, end], k) => { mapStarts[k] = mapSpan; mapSpan += end - start; });
  places = new Float64Array(blockCount);
  for (let block = 0; block < blockCount; block++) places[block] = addresses[block] === 0 ? -1 : mapPlace(addresses[block] - 1);
}

function showHeap() {
  if (!addresses || meta.regions.length === 0) return;
  $("heap").hidden = false;
  if (!places) mapPlaces();
  const css = Math.max(100, mapCanvas.parentElement.clientWidth);
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  mapRows = Math.max(1, Math.min(16, Math.ceil(mapSpan / (4 << 20) / css * 8)));
  mapCanvas.style.height = `${mapRows * (MAP_ROW + MAP_GAP)}px`;
  fit(mapCanvas);
  const width = mapCanvas.width;
  mapCells = width * mapRows;
  const toCell = mapCells / mapSpan;
  const used = new Int32Array(mapCells + 1), shade = new Uint8Array(mapCells), cover = new Float32Array(mapCells);
  let usedBlocks = 0;
  for (let block = 0; block < blockCount && allocAt[block] <= moment; block++) {
    const place = places[block];
    if (place < 0 || freeAt[block] === allocAt[block]) continue;
    usedBlocks++;
    const first = Math.floor(place * toCell), last = Math.min(mapCells - 1, Math.max(first, Math.ceil((place + sizes[block]) * toCell) - 1));
    used[first]++; used[last + 1]--;
    if (moment >= completeAt[block]) continue;
    const number = moment < freeAt[block] ? groupOfBlock[block] + 1 : groups.length;
    const start = place * toCell, end = (place + sizes[block]) * toCell;
    for (let c = first; c <= last; c++) {
      const own = Math.min(c + 1, end) - Math.max(c, start);
      if (own > cover[c]) { cover[c] = own; shade[c] = number; }
    }
  }
  const context = mapCanvas.getContext("2d", { alpha: false });
  const height = mapCanvas.height, rowHeight = Math.round(MAP_ROW * ratio), rowStep = Math.round((MAP_ROW + MAP_GAP) * ratio);
  const image = context.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
  const surface = packedColor(colors["--surface"]), unused = packedColor(colors["--page"]), free = packedColor(colors["--free"]);
  const shades = groups.map((group) => packedColor(colors[group.color]));
  pixels.fill(surface);
  let depth = 0;
  for (let c = 0; c < mapCells; c++) {
    depth += used[c];
    const row = Math.floor(c / width), x = c % width;
    const pixel = shade[c] > 0 ? shades[shade[c] - 1] : depth > 0 ? free : unused;
    const isHatched = shade[c] === groups.length;
    for (let y = row * rowStep, end = Math.min(height, y + rowHeight); y < end; y++) {
      pixels[y * width + x] = isHatched && ((x + y) & 7) < 3 ? surface : pixel;
    }
  }
  context.putImageData(image, 0, 0);
  context.fillStyle = colors["--ink"];
  if (mapStarts.length <= 400) {
    for (let k = 1; k < mapStarts.length; k++) {
      const c = Math.floor(mapStarts[k] * toCell);
      context.fillRect(c % width, Math.floor(c / width) * rowStep, ratio, rowHeight);
    }
  }
  if (chosen >= 0 && places[chosen] >= 0 && moment < completeAt[chosen] && allocAt[chosen] <= moment) {
    const first = Math.floor(places[chosen] * toCell), last = Math.max(first, Math.ceil((places[chosen] + sizes[chosen]) * toCell) - 1);
    context.strokeStyle = colors["--ink"]; context.lineWidth = 2 * ratio;
    for (let row = Math.floor(first / width); row <= Math.floor(last / width); row++) {
      const from = Math.max(first, row * width) % width, to = Math.min(last, row * width + width - 1) % width;
      context.strokeRect(from + ratio, row * rowStep + ratio, Math.max(2 * ratio, to - from - ratio), rowHeight - 2 * ratio);
    }
  }
  const text = `${plural(meta.regions.length, "region")}, ${bytesText(mapSpan)} of addresses`;
  mapCanvas.setAttribute("aria-label", `The heap by address: ${text}, ${bytesText(pendingBytes)} pending`);
  const line = $("heap-sums");
  line.replaceChildren(`${text}; regions are derived from the blocks`);
  for (const [color, name] of [["--free", "free, was used"], ["--pending", "freed, in use by another stream"], ["--page", "not yet used"]]) {
    const key = element("span", undefined, "key");
    key.append(swatch(color), name);
    line.append(key);
  }
}

function blockAtPointer(event) {
  const box = mapCanvas.getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top) / (MAP_ROW + MAP_GAP));
  const place = ((row + (event.clientX - box.left) / box.width) / mapRows) * mapSpan;
  const cellBytes = mapSpan / mapCells;
  let best = -1;
  for (let block = 0; block < blockCount && allocAt[block] <= moment; block++) {
    if (moment >= completeAt[block] || places[block] < 0) continue;
    if (places[block] <= place + cellBytes && place < places[block] + sizes[block] && (best < 0 || sizes[block] < sizes[best])) best = block;
  }
  return best;
}

// ---- Stacks -----------------------------------------------------------------------------------------------------------

const FLAME_ROW = 20, FLAME_DEPTH = 60;
const isPython = (frame) => /\.py$|^<(ipython|stdin)/.test(meta.frames[frame][0]);
let shownNodes = null, shownFrames, shownCallers; // the tree of the shown frames; nodes are counted from 1
function shapeFlame() {
  const isAll = $("with-cpp").checked, byPlace = new Map();
  shownNodes = new Uint32Array(frames.length + 1);
  shownFrames = [-1]; shownCallers = [0];
  for (let node = 1; node <= frames.length; node++) {
    const caller = callers[node - 1] === 0 ? 0 : shownNodes[node - callers[node - 1]], frame = frames[node - 1];
    if (!isAll && !isPython(frame)) { shownNodes[node] = caller; continue; }
    const place = `${caller} ${frame}`;
    if (!byPlace.has(place)) {
      byPlace.set(place, shownFrames.length);
      shownFrames.push(frame); shownCallers.push(caller);
    }
    shownNodes[node] = byPlace.get(place);
  }
}

function showFlame() {
  if (!stacks) return;
  $("stacks").hidden = false;
  if (!shownNodes) shapeFlame();
  const own = new Float64Array(shownFrames.length);
  for (const block of live) if (stacks[block] > 0) own[shownNodes[stacks[block]]] += sizes[block];
  const children = new Map();
  const all = own.slice();
  // A caller has a smaller number than what it calls.
  for (let node = shownFrames.length - 1; node >= 1; node--) {
    if (all[node] === 0) continue;
    const caller = shownCallers[node];
    all[caller] += all[node];
    const list = children.get(caller);
    if (list) list.push(node); else children.set(caller, [node]);
  }
  const total = all[0];
  const box = $("flame"), width = box.clientWidth || 800;
  const made = [];
  let deepest = 0;
  const place = (node, x, span, depth) => {
    if (depth > FLAME_DEPTH || span < 2.5) return;
    deepest = Math.max(deepest, depth);
    const whole = node > 0 ? frameText(shownFrames[node]) : "only frames of C++";
    const button = element("button", whole.replace(/ {2}.*[\/\\]/, "  "));
    button.type = "button";
    const bytes = node > 0 ? all[node] : own[0], share = `${bytesText(bytes)}, ${(100 * bytes / total).toFixed(1)} %`;
    button.title = `${whole}\n${share}`;
    button.setAttribute("aria-label", `${whole}: ${share}`);
    if (own[node] > 0) button.className = "own";
    button.style.left = `${x}px`; button.style.width = `${span}px`; button.style.top = `${depth * FLAME_ROW}px`;
    if (node > 0) button.addEventListener("click", () => { flameRoot = node; showFlame(); });
    made.push(button);
    if (node > 0) layOut(node, x, span, depth + 1);
  };
  const layOut = (node, x, span, depth) => {
    const list = (children.get(node) || []).sort((a, b) => all[b] - all[a]);
    for (const child of list) {
      const share = span * all[child] / all[node];
      place(child, x, share, depth);
      x += share;
    }
    if (node === 0 && own[0] > 0) place(0, x, span * own[0] / total, depth);
  };
  if (flameRoot > 0 && all[flameRoot] > 0) place(flameRoot, 0, width, 0); else { flameRoot = -1; layOut(0, 0, width, 0); }
  $("flame-up").disabled = flameRoot < 0;
  box.style.height = `${(deepest + 1) * FLAME_ROW}px`;
  box.replaceChildren(...(made.length > 0 ? made : [element("p", "No live block has a stack at this moment.", "note")]));
}

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
