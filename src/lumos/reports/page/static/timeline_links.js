// Who waited for whom among the tasks of a timeline, the tasks around one another, and their facts.

// tasks: as columns.js decodes them. words: the names of the kinds of dependency.
export class TaskLinks {
  constructor(tasks, words) {
    Object.assign(this, { tasks, words });
    this.laneOf = new Int32Array(tasks.start.length);
    for (let lane = 0; lane + 1 < tasks.offset.length; lane++) this.laneOf.fill(lane, tasks.offset[lane], tasks.offset[lane + 1]);
    const { offset, back, kind } = tasks.links, before = new Uint32Array(back.length);
    for (let i = 0; i < tasks.start.length; i++) for (let at = offset[i]; at < offset[i + 1]; at++) before[at] = i - back[at];
    this.links = { offset, before, kind };
    this.follow = inverted(this.links, tasks.start.length);
  }

  end(i) { return this.tasks.start[i] + this.tasks.duration[i]; }

  // What piece i waited for: [{piece, kind, last}], the latest first; last: the one that ended last of all.
  before(i) {
    const { offset, before, kind } = this.links, found = [];
    for (let at = offset[i]; at < offset[i + 1]; at++) found.push({ piece: before[at], kind: this.words[kind[at]] });
    if (i > this.tasks.offset[this.laneOf[i]]) found.push({ piece: i - 1, kind: "before it on the lane" });
    found.sort((a, b) => this.end(b.piece) - this.end(a.piece));
    return found;
  }

  // What waits for piece i, the earliest first.
  after(i) {
    const { offset, piece, kind } = this.follow, found = [];
    for (let at = offset[i]; at < offset[i + 1]; at++) found.push({ piece: piece[at], kind: this.words[kind[at]] });
    if (i + 1 < this.tasks.offset[this.laneOf[i] + 1]) found.push({ piece: i + 1, kind: "behind it on the lane" });
    found.sort((a, b) => this.tasks.start[a.piece] - this.tasks.start[b.piece]);
    return found;
  }

  // The arrows from launches to the work that they launch which begin or end in the time from begin to end, at most `most`.
  launches(begin, end, most) {
    const launch = this.words.indexOf("launch"), { offset, before, kind } = this.links, found = [];
    for (let i = 0; i < this.tasks.start.length; i++)
      for (let at = offset[i]; at < offset[i + 1]; at++) {
        if (kind[at] !== launch || this.end(i) < begin || this.tasks.start[before[at]] > end) continue;
        if (found.length === most) return null;
        found.push([before[at], i]);
      }
    return found;
  }
}

// The lists of links by what was waited for.
function inverted({ offset, before, kind }, pieces) {
  const start = new Uint32Array(pieces + 1);
  for (const i of before) start[i + 1]++;
  for (let i = 0; i < pieces; i++) start[i + 1] += start[i];
  const next = start.slice(), piece = new Uint32Array(before.length), kinds = new Uint8Array(before.length);
  for (let i = 0; i < pieces; i++)
    for (let at = offset[i]; at < offset[i + 1]; at++) {
      const to = next[before[at]]++;
      piece[to] = i;
      kinds[to] = kind[at];
    }
  return { offset: start, piece, kind: kinds };
}
