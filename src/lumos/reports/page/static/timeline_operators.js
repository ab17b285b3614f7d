// The nested operators of a timeline's threads: opening and closing them, finding one, and what is known of it.

import { el } from "lumos/dom.js";
import { RULER } from "lumos/timeline_lanes.js";
import { Nested } from "lumos/timeline_nested.js";

export class Operators {
  constructor(timeline) {
    Object.assign(this, { timeline, known: new WeakMap() });
    const { around, detail, drawing } = timeline, threads = drawing.lanes.some(({ kind }) => kind === "thread");
    this.button = threads && (around || detail) ? el("button", { type: "button", "aria-pressed": "false", title: "show the operators that are nested in the threads", onclick: () => this.toggleAll() }, "nested operators") : null;
  }

  // The tasks whose operators are known: {tasks, around, names, shift}, all of the run or the excerpt that was fetched last; or null.
  get source() {
    const { run, around, names, excerpts } = this.timeline;
    if (run.tasks) return around && { tasks: run.tasks, around, names, shift: 0 };
    const excerpt = excerpts.get(run.source);
    return excerpt?.around ? excerpt : null;
  }

  get nested() {
    const { source } = this;
    if (!source) return null;
    if (!this.known.has(source.tasks)) this.known.set(source.tasks, new Nested(source.tasks, source.around, this.timeline.drawing.lanes));
    return this.known.get(source.tasks);
  }

  canOpen(lane) { return this.button !== null && this.timeline.drawing.lanes[lane]?.kind === "thread"; }

  // Open or close the nested operators of a thread; without one, of the thread of the selected task or the first in view.
  toggle(lane = this.nearest()) {
    const { timeline, nested } = this, { lanes } = timeline;
    if (!this.canOpen(lane)) return;
    const open = !lanes.depth.has(lane), deep = nested?.rows[lane].length ?? 0, { rank, name } = lanes.all[lane];
    lanes.open(lane, !open ? 0 : nested ? deep : 1);
    timeline.announcement.textContent = `rank ${rank}, ${name}: ${!open ? "closed" : nested ? `operators, ${deep} deep` : "zoom in to see its operators"}`;
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
    const found = nested?.at(lane, depth, time - this.source.shift, (timeline.view.end - timeline.view.begin) / timeline.width);
    return found ? this.describe(found) : null;
  }

  // An operator in the form in which Timeline.describe gives tasks.
  describe(operator) {
    const { nested, source: { names, shift } } = this;
    return {
      operator, lane: nested.lane[operator], depth: nested.depth[operator], index: -1, label: "operator", name: names[nested.name[operator]],
      start: nested.start[operator] + shift, duration: nested.end[operator] - nested.start[operator],
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

  // The operators around a piece of the run that is shown, the outermost first: {name, open}.
  around(piece) {
    const { nested, source } = this;
    return nested ? nested.chain(piece).map((i) => ({ name: source.names[nested.name[i]], open: nested.lane[i] < 0 ? null : () => this.reveal(i) })) : [];
  }

  // What the panel says of an operator: its own time, the lines of its facts, what is around it, and the pieces that it launched.
  facts(operator) {
    const { timeline, nested, source } = this, first = nested.first[operator], whole = timeline.run.tasks === source.tasks;
    const around = [];
    for (let i = nested.parent[operator]; i; i = nested.parent[i]) around.unshift({ name: source.names[nested.name[i]], open: nested.lane[i] < 0 ? null : () => this.reveal(i) });
    const launched = nested.launched(operator).map((piece) => ({ piece, ...timeline.describe(piece, source) }));
    return { own: nested.own[operator], facts: whole ? timeline.factsOf({ index: first }) : [], around, launched, whole };
  }
}
