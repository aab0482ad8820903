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
  return unit === 0 ? (value === 1 ? "1 byte" : `${value} bytes`) : `${value >= 100 ? value.toFixed(1) : value >= 10 ? value.toFixed(2) : value.toFixed(3)} ${units[unit]}`;
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

