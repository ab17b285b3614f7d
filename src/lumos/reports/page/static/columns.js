// Arrays of a document: base64 of gzip of little-endian numbers, as lumos.reports.page.columns writes them.

const TYPES = {
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, int32: Int32Array, float32: Float32Array, float64: Float64Array,
};

export async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

export async function decode(column) {
  return new TYPES[column.dtype](await inflate(column.gzip));
}

// A prefix sum that begins again at each lane: turns differences of starts into starts.
export function cumulate(differences, offset) {
  const out = new Float64Array(differences.length);
  for (let lane = 0; lane + 1 < offset.length; lane++)
    for (let i = offset[lane], at = 0; i < offset[lane + 1]; i++) out[i] = at += differences[i];
  return out;
}

export async function decodeTasks(tasks) {
  if (!tasks) return null;
  const { links } = tasks;
  const [offset, differences, duration, label, name, task] = await Promise.all(
    [tasks.offset, tasks.start, tasks.duration, tasks.label, tasks.name, tasks.task].map(decode),
  );
  return {
    offset, start: cumulate(differences, offset), duration, label, name, task,
    around: tasks.around ? await decode(tasks.around) : null,
    facts: tasks.facts ? await decode(tasks.facts) : null,
    links: links ? { offset: await decode(links.offset), before: await decode(links.before), kind: await decode(links.kind) } : null,
  };
}

// The operators around tasks: of each the one around it, and its name.
export async function decodeAround(around) {
  return around && { parent: await decode(around.parent), name: await decode(around.name) };
}

export async function decodeRun(run) {
  const levels = await Promise.all(
    run.levels.map(async (l) => ({ bins: l.bins, bin_ns: l.bin_ns, label: await decode(l.label), busy: await decode(l.busy) })),
  );
  const path = run.path && {
    lane: await decode(run.path.lane), start: await decode(run.path.start), duration: await decode(run.path.duration),
  };
  return { ...run, levels, tasks: await decodeTasks(run.tasks), path };
}
