// The blocks, the heap and the stacks at a moment.

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
  if (moment >= 0 && kinds[moment] === REFUSED) sums.push(`${bytesText(sizes[blockOf[moment]])} requested`);
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

