// Paint lanes into an array of pixels. Pure functions whose cost depends on the number of pixels, not of tasks.

// Where more tasks than this are in view, bins are painted instead.
export const MOST_TASKS = 20_000;

// The first index in [low, high) whose start + duration is after `time`.
function firstEndingAfter(tasks, low, high, time) {
  while (low < high) {
    const mid = (low + high) >> 1;
    if (tasks.start[mid] + tasks.duration[mid] > time) high = mid;
    else low = mid + 1;
  }
  return low;
}

function firstStartingFrom(tasks, low, high, time) {
  while (low < high) {
    const mid = (low + high) >> 1;
    if (tasks.start[mid] >= time) high = mid;
    else low = mid + 1;
  }
  return low;
}

// The index range of the tasks of a lane that run in [begin, end).
export function visible(tasks, lane, begin, end) {
  const low = firstEndingAfter(tasks, tasks.offset[lane], tasks.offset[lane + 1], begin);
  return [low, firstStartingFrom(tasks, low, tasks.offset[lane + 1], end)];
}

export function tasksInView(tasks, lanes, begin, end) {
  let number = 0;
  for (const { lane } of lanes) {
    const [low, high] = visible(tasks, lane, begin, end);
    number += high - low;
  }
  return number;
}

// The coarsest level whose bins are no wider than a pixel, else the finest.
export function levelFor(levels, nsPerPixel) {
  for (let i = levels.length - 1; i >= 0; i--) if (levels[i].bin_ns <= nsPerPixel) return levels[i];
  return levels[0];
}

// What a pixel column of a lane shows: [label, busy], from all bins that begin in it, or else the bin that contains it.
export function cell(level, lane, from, to) {
  const first = Math.floor(from / level.bin_ns);
  const last = Math.max(first + 1, Math.min(Math.ceil(to / level.bin_ns), level.bins));
  let busy = 0, label = 255, most = 0;
  for (let bin = Math.max(first, 0); bin < Math.min(last, level.bins); bin++) {
    const share = level.busy[lane * level.bins + bin];
    busy += share;
    if (share > most) [most, label] = [share, level.label[lane * level.bins + bin]];
  }
  return [label, busy / (last - first)];
}

// target: {pixels: Uint32Array, width, height}; lanes: [{lane, y, height}] in pixels; colours: Uint32Array by label.
export function paintLevel(target, level, lanes, view, colours) {
  const { pixels, width } = target;
  const perPixel = (view.end - view.begin) / width;
  for (const { lane, y, height } of lanes)
    for (let x = 0; x < width; x++) {
      const from = view.begin + x * perPixel;
      if (from < 0) continue;
      const [label, busy] = cell(level, lane, from, from + perPixel);
      if (label === 255) continue;
      const filled = Math.max(1, Math.round((height * Math.min(busy, 255)) / 255));
      fill(pixels, width, target.height, x, x + 1, y + height - filled, y + height, colours[label]);
    }
}

// dim: Uint8Array by name, 1 where a task is to be pale (null: none).
export function paintTasks(target, tasks, lanes, view, colours, dim) {
  const { pixels, width } = target;
  const scale = width / (view.end - view.begin);
  for (const { lane, y, height } of lanes) {
    const [low, high] = visible(tasks, lane, view.begin, view.end);
    let painted = -1;
    for (let i = low; i < high; i++) {
      const left = (tasks.start[i] - view.begin) * scale;
      const right = left + tasks.duration[i] * scale;
      const x0 = Math.max(Math.floor(left), painted, 0);
      const x1 = Math.min(Math.max(Math.ceil(right - 0.5), x0 + 1), width);
      if (x1 <= painted) continue;
      const pale = dim !== null && dim[tasks.name[i]] === 1;
      fill(pixels, width, target.height, x0, x1, y, y + height, pale ? paler(colours[tasks.label[i]]) : colours[tasks.label[i]]);
      if (right - left > 4 && x1 > x0) fill(pixels, width, target.height, x1 - 1, x1, y, y + height, edge(colours[tasks.label[i]], pale));
      painted = x1;
    }
  }
}

function fill(pixels, width, rows, x0, x1, y0, y1, colour) {
  const bottom = Math.min(y1, rows);
  if (x1 - x0 < 12) {
    // For a few pixels a loop is faster than a call of fill.
    for (let y = Math.max(y0, 0); y < bottom; y++) for (let at = y * width + x0, end = y * width + x1; at < end; at++) pixels[at] = colour;
    return;
  }
  for (let y = Math.max(y0, 0); y < bottom; y++) pixels.fill(colour, y * width + x0, y * width + x1);
}

const paler = (abgr) => ((abgr & 0x00ffffff) | 0x30000000) >>> 0;
const edge = (abgr, pale) => ((((abgr & 0x00fefefe) >>> 1) | (pale ? 0x30000000 : 0xff000000)) >>> 0);

// "#rrggbb" as a pixel.
export function pixel(hex) {
  const rgb = parseInt(hex.slice(1), 16);
  return (0xff000000 | ((rgb & 0xff) << 16) | (rgb & 0xff00) | (rgb >> 16)) >>> 0;
}
