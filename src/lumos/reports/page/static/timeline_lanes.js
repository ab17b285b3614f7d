// Which lanes of a timeline are shown, how tall each is, and where: all or one rank of each kind, closed or opened to show what is nested.

// The height of the ruler, the space between lanes, the most height of all, and the height of a row of nested operators, in pixels.
export const RULER = 22, GAP = 3, TALLEST = 620, NESTED = 15;
// The width of the lanes' names on a canvas of that width: on a phone they leave more room for the lanes.
export const gutterOf = (wide) => (wide < 600 ? 116 : 168);
// Jobs of more ranks begin with one rank of each kind.
const MOST_RANKS = 16;

export class Lanes {
  // all: [{rank, kind, name}]. groups: the ranks that are alike.
  constructor(all, groups) {
    Object.assign(this, { all, groups, top: 0, gutter: gutterOf(Infinity) });
    this.ranks = new Set(all.map((lane) => lane.rank)).size;
    this.grouped = this.ranks > MOST_RANKS && groups.length < this.ranks;
    this.depth = new Map(); // of each lane that is open: how many rows of operators it has
    this.arrange();
  }

  arrange() {
    const first = new Map(this.groups.map((group) => [group[0], group.length]));
    this.alike = this.grouped ? first : new Map();
    this.shown = this.all.flatMap((lane, i) => (!this.grouped || first.has(lane.rank) ? [i] : []));
    this.row = Math.max(11, Math.min(22, Math.floor(TALLEST / this.shown.length) - GAP));
    this.offset = new Float64Array(this.all.length).fill(-1);
    let at = RULER + 2;
    for (const lane of this.shown) {
      this.offset[lane] = at;
      at += this.height(lane) + GAP;
    }
    this.total = at + 2;
    this.tall = Math.min(this.total, RULER + TALLEST);
    this.deepest = this.total - this.tall;
    this.top = Math.min(this.top, this.deepest);
  }

  // The whole height of a lane with its nested rows.
  height(lane) { return this.row + (this.depth.get(lane) ?? 0) * NESTED; }

  // Whether a lane shows one thread or stream, so that its tasks can be drawn; others have levels only.
  isSingle(lane) { return ["thread", "stream"].includes(this.all[lane].kind); }

  // A lane in words, with the number of ranks that its rank stands for.
  described(lane) {
    const { rank, name } = this.all[lane], alike = (this.alike.get(rank) ?? 1) - 1;
    return `rank ${rank}${alike ? ` and ${alike} like it` : ""}, ${name}`;
  }

  isShown(lane) { return this.offset[lane] >= 0; }

  y(lane) { return this.offset[lane] - this.top; }

  // Show one rank of each kind, or every rank.
  group(on) {
    this.grouped = on;
    this.top = 0;
    this.arrange();
  }

  // Open a lane to show that many rows below it; 0 closes it.
  open(lane, rows) {
    if (rows) this.depth.set(lane, rows);
    else this.depth.delete(lane);
    this.arrange();
  }

  scroll(to) { this.top = Math.min(Math.max(to, 0), this.deepest); }

  // Bring a row of a lane into view; depth: of its nested rows, -1 for the lane itself.
  scrollTo(lane, depth = -1) {
    if (!this.isShown(lane)) return;
    const y = this.y(lane) + (depth < 0 ? 0 : this.row + depth * NESTED);
    if (y < RULER || y + this.row > this.tall) this.scroll(this.top + y - this.tall / 2);
  }

  // The lanes in view, with their place on a canvas of so many pixels a unit, without the ruler.
  inView(ratio) {
    return this.shown.filter((lane) => this.y(lane) + this.height(lane) > RULER && this.y(lane) < this.tall)
      .map((lane) => ({ lane, y: Math.round((this.y(lane) - RULER) * ratio), height: Math.round(this.row * ratio) }));
  }

  // The lane at a height, and its nested row, -1 for the lane itself; null beside them.
  at(y) {
    const lane = y <= RULER ? undefined : this.shown.find((each) => y >= this.y(each) && y < this.y(each) + this.height(each) + GAP);
    return lane === undefined ? null : { lane, depth: Math.max(Math.floor((y - this.y(lane) - this.row) / NESTED), -1) };
  }
}
