// The operators that are nested in the threads of a timeline: where each begins and ends in a run, how deep it is, and how they are drawn.
// An operator lasts from the first start to the last end of the tasks in it, so every run has its own times.

import { NESTED, RULER } from "lumos/timeline_lanes.js";
import { style } from "lumos/theme.js";

export class Nested {
  // tasks: as columns.js decodes them, `tasks.around` the innermost operator of each. around: {parent, name} of each operator; 0 is none.
  // lanes: the lanes of the drawing, of which only threads nest.
  constructor(tasks, { parent, name }, lanes) {
    Object.assign(this, { tasks, parent, name });
    const many = parent.length;
    this.lane = new Int32Array(many).fill(-1);
    [this.start, this.end] = [new Float64Array(many).fill(Infinity), new Float64Array(many).fill(-Infinity)];
    this.depth = new Int32Array(many).fill(-1);
    for (let i = 1; i < many; i++) this.depth[i] = this.depth[parent[i]] + 1; // what encloses comes first
    [this.own, this.first] = [new Float64Array(many), new Int32Array(many).fill(-1)];
    lanes.forEach(({ kind }, lane) => { if (kind === "thread") this.add(lane); });
    this.rows = lanes.map(() => []); // by lane and depth: operators by start
    const order = [...this.lane.keys()].filter((i) => this.lane[i] >= 0).sort((a, b) => this.start[a] - this.start[b]);
    for (const i of order) (this.rows[this.lane[i]][this.depth[i]] ??= []).push(i);
    this.rows.forEach((rows) => { for (let depth = 0; depth < rows.length; depth++) rows[depth] ??= []; });
  }

  add(lane) {
    const { offset, start, duration, around } = this.tasks;
    for (let piece = offset[lane]; piece < offset[lane + 1]; piece++) {
      const innermost = around[piece], end = start[piece] + duration[piece];
      this.own[innermost] += duration[piece];
      if (this.first[innermost] < 0) this.first[innermost] = piece;
      for (let i = innermost; i; i = this.parent[i]) {
        this.lane[i] = lane;
        if (start[piece] < this.start[i]) this.start[i] = start[piece];
        if (end > this.end[i]) this.end[i] = end;
      }
    }
  }

  // The pieces on other lanes that an operator, or one inside it, launched, by start.
  launched(operator) {
    const { around, offset, start } = this.tasks, found = [], [from, to] = [offset[this.lane[operator]], offset[this.lane[operator] + 1]];
    for (let piece = 0; piece < around.length; piece++) {
      if (piece >= from && piece < to) continue;
      let i = around[piece];
      while (i && i !== operator) i = this.parent[i];
      if (i) found.push(piece);
    }
    return found.sort((a, b) => start[a] - start[b]);
  }

  // The operator of a lane and a depth that runs at a time, or nearest to it within `slack`; 0 where there is none.
  at(lane, depth, time, slack) {
    let best = 0, least = slack;
    for (const i of this.rows[lane][depth] ?? []) {
      const away = Math.max(this.start[i] - time, time - this.end[i], 0);
      if (away < least || (away === 0 && !best)) [best, least] = [i, away];
    }
    return best;
  }
}

// Draws the nested rows of the lanes that are open.
export function paintNested(timeline, context, nested) {
  const { lanes, view, names } = timeline, right = lanes.gutter + timeline.width;
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  const letter = context.measureText("abcdefghij").width / 10;
  const [fill, line, ink] = [style("--line"), style("--paper"), style("--ink")];
  for (const { lane } of lanes.inView(1)) {
    if (!lanes.depth.has(lane)) continue;
    nested.rows[lane].forEach((row, depth) => {
      const y = lanes.y(lane) + lanes.row + depth * NESTED + 1;
      if (y < RULER - NESTED || y > lanes.tall) return;
      let painted = -1;
      for (const i of row) {
        const x1 = timeline.x(nested.end[i]);
        if (nested.end[i] < view.begin || x1 - painted < 0.5) continue;
        if (nested.start[i] > view.end) break;
        const from = Math.max(timeline.x(nested.start[i]), lanes.gutter), to = Math.min(x1, right);
        context.globalAlpha = timeline.wanted && !names[nested.name[i]].toLowerCase().includes(timeline.wanted) ? 0.3 : 1;
        context.fillStyle = fill;
        context.fillRect(from, y, Math.max(to - from, 0.5), NESTED - 1);
        context.fillStyle = line;
        if (to - from > 3) context.fillRect(to - 1, y, 1, NESTED - 1);
        context.fillStyle = ink;
        const letters = Math.floor((to - from - 6) / letter);
        if (letters >= 3) context.fillText(names[nested.name[i]].slice(0, letters), from + 3, y + NESTED / 2, to - from - 5);
        painted = x1;
      }
    });
  }
  context.globalAlpha = 1;
}
