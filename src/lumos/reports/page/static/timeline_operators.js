// The nested operators of a timeline's threads: opening and closing them, finding one, and what is known of it.

import { el } from "lumos/dom.js";
import { RULER } from "lumos/timeline_lanes.js";
import { Nested } from "lumos/timeline_nested.js";

export class Operators {
  constructor(timeline) {
    Object.assign(this, { timeline, known: new WeakMap() });
    const { drawing } = timeline, threads = drawing.lanes.some(({ kind }) => kind === "thread");
    this.button = threads && drawing.around ? el("button", { type: "button", "aria-pressed": "false", title: "show the operators that are nested in the threads", onclick: () => this.toggleAll() }, "nested operators") : null;
  }

  // Those of the run that is shown; null until its tasks are there.
  get nested() {
    const { run: { tasks }, around, drawing } = this.timeline;
    if (!tasks || !around) return null;
    if (!this.known.has(tasks)) this.known.set(tasks, new Nested(tasks, around, drawing.lanes));
    return this.known.get(tasks);
  }

  canOpen(lane) { return this.button !== null && this.timeline.drawing.lanes[lane]?.kind === "thread"; }

  // Open or close the nested operators of a thread; without one, of the thread of the selected task or the first in view.
  toggle(lane = this.nearest()) {
    const { timeline, nested } = this, { lanes } = timeline;
    if (!this.canOpen(lane)) return;
    const open = !lanes.depth.has(lane), deep = nested?.rows[lane].length ?? 0, { rank, name } = lanes.all[lane];
    lanes.open(lane, !open ? 0 : nested ? deep : 1);
    timeline.announcement.textContent = `rank ${rank}, ${name}: ${!open ? "closed" : nested ? `operators, ${deep} deep` : "its operators are not there yet"}`;
    this.resize();
  }

  nearest() {
    const { selected, lanes } = this.timeline;
    return selected && this.canOpen(selected.lane) ? selected.lane : lanes.shown.find((lane) => this.canOpen(lane) && lanes.y(lane) >= RULER);
  }

  // Open all threads that are shown, or close all.
  toggleAll() {
    const { lanes } = this.timeline, close = lanes.depth.size > 0;
    for (const lane of close ? [...lanes.depth.keys()] : lanes.shown) this.toggle(lane);
  }

  // Fit the lanes that are open to other tasks, which may be more or less deep.
  reopen() {
    const { nested, timeline: { lanes } } = this;
    if (!lanes.depth.size) return;
    for (const lane of [...lanes.depth.keys()]) lanes.open(lane, Math.max(nested?.rows[lane].length ?? 0, 1));
    this.resize();
  }

  resize() {
    const { timeline } = this, { lanes } = timeline;
    this.button.setAttribute("aria-pressed", String(lanes.depth.size > 0));
    timeline.canvas.style.height = `${lanes.tall}px`;
    timeline.moved();
    timeline.draw();
  }

  // The task or the operator at a place of `Lanes.at`, or null.
  under({ lane, depth }, time) {
    const { timeline, nested } = this;
    if (depth < 0) return timeline.taskAt(lane, time);
    const found = nested?.at(lane, depth, time, (timeline.view.end - timeline.view.begin) / timeline.width);
    return found ? this.describe(found) : null;
  }

  // An operator in the form in which Timeline.describe gives tasks.
  describe(operator) {
    const { nested, timeline: { names } } = this;
    return {
      operator, lane: nested.lane[operator], depth: nested.depth[operator], index: -1, label: "operator", name: names[nested.name[operator]],
      start: nested.start[operator], duration: nested.end[operator] - nested.start[operator],
    };
  }

  // Select an operator, opening its thread, and bring it into view.
  reveal(operator) {
    const { timeline } = this, found = this.describe(operator);
    if (!timeline.lanes.isShown(found.lane)) timeline.group(false);
    if (!timeline.lanes.depth.has(found.lane)) this.toggle(found.lane);
    timeline.select(found);
    timeline.scrollTo(found.lane, found.depth);
  }

  // Select the operator before or behind one, in its row.
  neighbour({ operator, lane, depth }, step) {
    const row = this.nested.rows[lane][depth], next = row[row.indexOf(operator) + step];
    if (next) this.timeline.select(this.describe(next));
  }

  // The innermost of these operators and those around it, the outermost first: {name, open}.
  chain(operator) {
    const { nested, timeline: { names } } = this, found = [];
    for (let i = operator; i; i = nested.parent[i]) found.unshift({ name: names[nested.name[i]], open: nested.lane[i] < 0 ? null : () => this.reveal(i) });
    return found;
  }

  // The operators around a piece of the run that is shown; of an operator's own time, the operator itself is the last.
  around(piece) { return this.nested ? this.chain(this.nested.tasks.around[piece]) : []; }

  // What the panel says of an operator: its own time, the lines of its facts, what is around it, and the pieces that it launched.
  facts(operator) {
    const { timeline, nested } = this;
    const launched = nested.launched(operator).map((piece) => ({ piece, ...timeline.describe(piece) }));
    return { own: nested.own[operator], facts: timeline.factsOf({ index: nested.first[operator] }), around: this.chain(nested.parent[operator]), launched };
  }
}
