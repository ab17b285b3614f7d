// Arrays of a document: base64 of gzip of little-endian numbers, their lowest bytes first, as lumos.reports.page.html writes them.

const TYPES = { uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, int32: Int32Array, float64: Float64Array };

export async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

export async function decode(column) {
  const bytes = new Uint8Array(await inflate(column.gzip)), { length } = column, type = TYPES[column.dtype], wide = type.BYTES_PER_ELEMENT;
  const placed = wide === 1 ? bytes : new Uint8Array(bytes.length);
  if (wide > 1) for (let byte = 0; byte < wide; byte++) for (let i = 0, from = byte * length, to = byte; i < length; i++, to += wide) placed[to] = bytes[from + i];
  const values = new type(placed.buffer);
  return column.differences ? sums(values) : values;
}

function sums(values) {
  const out = new Float64Array(values.length);
  for (let i = 0, at = 0; i < values.length; i++) out[i] = at += values[i];
  return out;
}

// All columns of an object, under their names.
async function decodeAll(columns) {
  return Object.fromEntries(await Promise.all(Object.entries(columns).map(async ([name, column]) => [name, await decode(column)])));
}

// Starts from pauses: each since the end of the piece before on the lane, the first since the begin of the step.
function starts(pause, duration, offset) {
  const out = new Float64Array(pause.length);
  for (let lane = 0; lane + 1 < offset.length; lane++)
    for (let i = offset[lane], at = 0; i < offset[lane + 1]; i++) at = (out[i] = at + pause[i]) + duration[i];
  return out;
}

// What a run needs to be drawn at first. Its tasks are left packed.
export async function decodeRun(run) {
  const levels = await Promise.all(run.levels.map(async (l) => ({ bins: l.bins, bin_ns: l.bin_ns, label: await decode(l.label), busy: await decode(l.busy) })));
  return { ...run, levels, tasks: null, packed: run.tasks, path: run.path && await decodeAll(run.path) };
}

// The tasks of a run, once they are needed.
export async function decodeTasks({ links, ...columns }) {
  const found = await decodeAll(columns), start = starts(found.pause, found.duration, found.offset);
  return { ...found, start, facts: found.facts ?? null, links: links ? await decodeAll(links) : null };
}

// The operators around tasks: of each the one around it, and its name.
export const decodeAround = (around) => around && decodeAll(around);
