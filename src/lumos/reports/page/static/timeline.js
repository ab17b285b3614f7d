// The timeline of a step: all lanes at any zoom, with mouse and keyboard.

import { decodeAround, decodeRun, decodeTasks } from "lumos/columns.js";
import { choice, el } from "lumos/dom.js";
import { duration, percent } from "lumos/format.js";
import { listen } from "lumos/timeline_input.js";
import { gutterOf, Lanes, RULER } from "lumos/timeline_lanes.js";
import { TaskLinks } from "lumos/timeline_links.js";
import { paintFlows, paintGutter, paintNames, paintPath, paintRuler, paintSelected } from "lumos/timeline_marks.js";
import { paintNested } from "lumos/timeline_nested.js";
import { Operators } from "lumos/timeline_operators.js";
import { cell, levelFor, MOST_TASKS, paintLevel, paintTasks, pixel, tasksInView, visible } from "lumos/timeline_paint.js";
import { operatorPanel, panel } from "lumos/timeline_panel.js";
import { TaskSearch } from "lumos/timeline_search.js";
import { byColour, called, onTheme, palette, style } from "lumos/theme.js";

export class Timeline {
  // drawing: what lumos.reports.page.timeline_levels.drawing returns. Levels are drawn first; tasks are unpacked behind that (`loaded`).
  static async create(drawing) {
    return new Timeline(drawing, await Promise.all(drawing.runs.map(decodeRun)));
  }

  constructor(drawing, runs) {
    Object.assign(this, { drawing, runs, around: null });
    this.run = runs[0];
    this.names = drawing.names;
    this.length = Math.max(...runs.map((r) => r.length_ns), 1);
    this.view = { begin: 0, end: this.length };
    this.onview = () => {};
    this.linksOf = new Map();
    this.lanes = new Lanes(drawing.lanes, drawing.groups ?? []);
    this.operators = new Operators(this);
    this.showPath = true;
    this.showFlows = false;
    this.dim = null;
    this.selected = null;
    this.colour = palette(drawing.labels);
    this.colours = Uint32Array.from(drawing.labels, (l) => pixel(this.colour(l)));
    this.element = this.build();
    onTheme(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.loaded = new Promise((done) => requestAnimationFrame(done)).then(() => this.load(this.run));
  }

  // Unpack the tasks of a run, and the operators around them.
  async load(run) {
    if (!run.packed || run.tasks) return;
    this.around ??= await decodeAround(this.drawing.around);
    run.tasks = await decodeTasks(run.packed);
    if (run === this.run) {
      this.search.update(this.wanted);
      this.operators.reopen();
      this.draw();
    }
  }

  // Show one rank of each kind, or every rank.
  group(on) {
    this.lanes.group(on);
    for (const [i, button] of [...(this.groupChoice?.children ?? [])].entries()) button.setAttribute("aria-pressed", String(on === (i === 0)));
    this.canvas.style.height = `${this.lanes.tall}px`;
    this.find(this.search.field.value);
  }

  build() {
    this.canvas = el("canvas", {
      tabindex: "0", role: "application", "aria-label":
        `Timeline of ${this.drawing.step}, ${this.drawing.lanes.length} lanes. Arrow keys pan and scroll, plus and minus zoom, Home shows all, N and P step through the tasks of a lane, E opens or closes a thread's nested operators.`,
    });
    this.tip = el("div", { class: "tip", hidden: true });
    this.announcement = el("div", { class: "sr", "aria-live": "polite" });
    this.readout = el("span", { class: "hint" });
    const runs = choice("run", this.runs.map((r) => [r.source, called(r.source)]), this.run.source, (source) => {
      this.showRun(source);
      this.moved();
    });
    runs.hidden = this.runs.length === 1;
    this.runChoice = runs;
    const path = el("label", {}, el("input", { type: "checkbox", checked: true, onchange: (e) => { this.showPath = e.target.checked; this.draw(); } }), " critical path");
    const flows = this.runs.some((r) => r.packed?.links) ? el("label", {}, el("input", { type: "checkbox", onchange: (e) => { this.showFlows = e.target.checked; this.draw(); } }), " launches") : null;
    const { groups: kinds, ranks, grouped } = this.lanes;
    const groups = kinds.length < ranks && ranks > 2 ? choice("ranks", [[true, kinds.length > 1 ? `${kinds.length} kinds of rank` : "1 kind of rank"], [false, `all ${ranks} ranks`]], grouped, (on) => this.group(on)) : null;
    this.groupChoice = groups;
    this.search = new TaskSearch(this);
    this.panel = el("div", { class: "task", hidden: true });
    const button = (text, label, act) => el("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    const bar = el("div", { class: "bar" }, runs,
      button("+", "zoom in", () => this.zoom(0.5)), button("−", "zoom out", () => this.zoom(2)), button("all", "show all", () => this.show(0, this.length)),
      path, ...[flows, groups, this.operators.button].filter(Boolean), this.search.element, el("span", { class: "space" }), this.readout);
    this.canvas.style.height = `${this.lanes.tall}px`;
    listen(this);
    const present = new Set(this.runs.flatMap((r) => [...(r.levels.at(-1)?.label ?? [])]));
    const threads = this.drawing.lanes.some((_, lane) => this.operators.canOpen(lane));
    const keys = byColour(this.drawing.labels.filter((_, i) => present.has(i))).map(([colour, labels]) => {
      const key = el("span", { class: "key" });
      key.style.background = colour;
      return el("span", {}, key, labels.join(", "));
    });
    return el("div", {}, bar, el("div", { class: "timeline" }, this.canvas, this.tip), this.announcement, this.panel, el("div", { class: "legend" }, ...keys),
      el("p", { class: "hint" }, "Drag to pan; Ctrl + wheel, + and − zoom; arrows pan and scroll; Home shows all; N and P step through tasks; a click on a task says what it waited for; double-click zooms to it." + (threads ? " A click on the name of a thread shows its nested operators." : "") + " The line along a lane is the critical path. The address of the page holds what is shown."));
  }

  // ---- what is in view

  // As wide as when it was last painted: asking the page each time would lay it out for every task.
  get width() { return Math.max((this.wide ?? this.canvas.clientWidth) - this.lanes.gutter, 10); }
  get height() { return this.canvas.clientHeight; }

  show(begin, end) {
    const span = Math.min(Math.max(end - begin, 50), this.length * 1.05);
    begin = Math.min(Math.max(begin, -0.02 * this.length), this.length * 1.02 - span);
    this.view = { begin, end: begin + span };
    this.draw();
    this.moved();
  }

  moved() { this.onview(); }

  showRun(source) {
    this.run = this.runs.find((r) => r.source === source);
    for (const button of this.runChoice.children) button.setAttribute("aria-pressed", String(button.textContent === source));
    this.search.update(this.wanted);
    this.select(null);
    this.operators.reopen();
    this.loaded = this.load(this.run);
  }

  // What is shown, as view_link.js writes it.
  state() {
    const { begin, end } = this.view, { run, selected } = this;
    const open = [...this.lanes.depth.keys()].join(",");
    return { run: run.source, begin, end, ...(open && { open }), ...(selected && !selected.operator && run.tasks ? { task: run.tasks.task[selected.index] } : {}) };
  }

  // Show what a link names: a run, a range, a rank, a task.
  async goTo({ run, begin, end, task, rank, at, open }) {
    if (run && run !== this.run.source && this.runs.some((r) => r.source === run)) this.showRun(run);
    await this.loaded;
    const { tasks } = this.run;
    for (const lane of (open ?? "").split(",").filter(Boolean).map(Number)) if (!this.lanes.depth.has(lane)) this.operators.toggle(lane);
    const piece = tasks && task !== undefined ? tasks.task.lastIndexOf(task) : -1;
    if (piece >= 0) this.reveal(this.describe(piece), begin === undefined);
    else if (at !== undefined) {
      const found = tasks && this.taskNear(rank, at);
      if (found) this.reveal(found, begin === undefined);
      else this.show(at - this.length / 100, at + this.length / 50);
    }
    if (begin !== undefined && end !== undefined) this.show(begin, end);
    if (rank !== undefined && !this.selected) {
      const lane = this.drawing.lanes.findIndex((each) => each.rank === rank);
      if (lane >= 0 && !this.lanes.isShown(lane)) this.group(false);
      this.scrollTo(lane);
    }
  }

  // The task of a rank that starts nearest to a time.
  taskNear(rank, at) {
    const { tasks } = this.run;
    let best = -1, least = Infinity;
    for (let lane = 0; lane + 1 < tasks.offset.length; lane++) {
      if (rank !== undefined && this.drawing.lanes[lane].rank !== rank) continue;
      for (let i = tasks.offset[lane]; i < tasks.offset[lane + 1]; i++) if (Math.abs(tasks.start[i] - at) < least) [best, least] = [i, Math.abs(tasks.start[i] - at)];
    }
    return best < 0 ? null : this.describe(best);
  }

  // Select a task and bring it into view: its lane, and with `zoom` so near that it can be seen among its neighbours.
  reveal(task, zoom) {
    if (!this.lanes.isShown(task.lane)) this.group(false);
    this.select(task);
    if (zoom) this.show(task.start - 4 * task.duration - 2000, task.start + 5 * task.duration + 2000);
    this.scrollTo(task.lane);
  }

  scrollTo(lane, depth = -1) {
    if (lane >= 0) this.lanes.scrollTo(lane, depth);
    this.draw();
  }

  zoom(factor, at = 0.5) {
    const { begin, end } = this.view;
    const centre = begin + (end - begin) * at;
    this.show(centre - (centre - begin) * factor, centre + (end - centre) * factor);
  }

  pan(share) {
    const span = (this.view.end - this.view.begin) * share;
    this.show(this.view.begin + span, this.view.end + span);
  }

  scroll(rows) {
    this.lanes.scroll(this.lanes.top + rows * this.lanes.row);
    this.draw();
  }

  find(text) {
    const wanted = text.trim().toLowerCase();
    this.wanted = wanted;
    this.dim = wanted ? Uint8Array.from(this.names, (n) => (n.toLowerCase().includes(wanted) ? 0 : 1)) : null;
    this.search.update(wanted);
    this.draw();
  }

  // The tasks to paint on lanes that can show them; null where there are so many in view that bins are painted instead.
  tasksToPaint(lanes) {
    const { run: { tasks }, view: { begin, end } } = this;
    return tasks && lanes.some(({ lane }) => this.lanes.isSingle(lane)) && tasksInView(tasks, lanes, begin, end) <= MOST_TASKS ? tasks : null;
  }

  // ---- painting

  draw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => { this.pending = 0; this.paint(); });
  }

  // Paint at once; returns the milliseconds that it took.
  paint() {
    const started = performance.now();
    const ratio = window.devicePixelRatio || 1;
    const { canvas } = this;
    if (!canvas.clientWidth) return 0;
    this.wide = canvas.clientWidth;
    this.lanes.gutter = gutterOf(this.wide);
    const wide = Math.round(this.wide * ratio), high = Math.round(this.height * ratio);
    if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
    const context = canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, wide, high);
    const lanes = this.lanes.inView(ratio);
    const image = this.image(Math.round(this.width * ratio), Math.round((this.height - RULER) * ratio));
    const found = this.tasksToPaint(lanes);
    const target = { pixels: image.pixels, width: image.data.width, height: image.data.height };
    image.pixels.fill(0);
    const binned = found ? lanes.filter(({ lane }) => !this.lanes.isSingle(lane)) : lanes, level = levelFor(this.run.levels, (this.view.end - this.view.begin) / target.width);
    if (found) paintTasks(target, found, lanes, this.view, this.colours, this.dim);
    paintLevel(target, level, binned, this.view, this.colours);
    this.backdrop(context, ratio);
    image.context.putImageData(image.data, 0, 0);
    context.drawImage(image.canvas, Math.round(this.lanes.gutter * ratio), Math.round(RULER * ratio));
    context.scale(ratio, ratio);
    if (found) paintNames(this, context, found, lanes);
    if (this.lanes.depth.size && this.operators.nested) paintNested(this, context, this.operators.nested);
    if (this.showPath) paintPath(this, context);
    paintFlows(this, context);
    paintSelected(this, context);
    paintGutter(this, context);
    paintRuler(this, context);
    const { begin, end } = this.view;
    Object.assign(canvas.dataset, { begin: Math.round(begin), end: Math.round(end), mode: found ? "tasks" : "levels" });
    this.readout.textContent = `${duration(Math.min(end - begin, this.run.length_ns))} of ${duration(this.run.length_ns)}${binned.length ? `, in bins of ${duration(level.bin_ns)}` : ""}`;
    return performance.now() - started;
  }

  image(width, height) {
    if (this.buffer?.data.width !== width || this.buffer?.data.height !== height) {
      const canvas = el("canvas", { width, height });
      const data = new ImageData(width, height);
      this.buffer = { canvas, context: canvas.getContext("2d"), data, pixels: new Uint32Array(data.data.buffer) };
    }
    return this.buffer;
  }

  x(ns) { return this.lanes.gutter + ((ns - this.view.begin) / (this.view.end - this.view.begin)) * this.width; }
  timeAt(x) { return this.view.begin + ((x - this.lanes.gutter) / this.width) * (this.view.end - this.view.begin); }

  // Who waited for whom in the run that is shown; null where the drawing does not say.
  get links() {
    const { run } = this;
    if (!run.tasks?.links) return null;
    if (!this.linksOf.has(run.source)) this.linksOf.set(run.source, new TaskLinks(run.tasks, this.drawing.link_words));
    return this.linksOf.get(run.source);
  }

  backdrop(context, ratio) {
    context.fillStyle = style("--panel");
    for (const { y, height } of this.lanes.inView(ratio)) context.fillRect(this.lanes.gutter * ratio, RULER * ratio + y, this.width * ratio, height);
  }

  // ---- what is under the pointer

  // At any zoom: the task that takes most of the pixel.
  taskAt(lane, time) {
    const { tasks } = this.run;
    if (!tasks || !this.lanes.isSingle(lane)) return null;
    const slack = (this.view.end - this.view.begin) / this.width / 2;
    const [low, high] = visible(tasks, lane, time - slack, time + slack);
    let best = -1, most = -1;
    for (let i = low; i < high; i++) {
      const inside = Math.min(tasks.start[i] + tasks.duration[i], time + slack) - Math.max(tasks.start[i], time - slack);
      if (inside > most) [best, most] = [i, inside];
    }
    return best < 0 ? null : this.describe(best, lane);
  }

  // A piece of the run that is shown.
  describe(i, lane = this.laneOf(i)) {
    const { tasks } = this.run;
    return { lane, index: i, start: tasks.start[i], duration: tasks.duration[i], label: this.drawing.labels[tasks.label[i]], name: this.names[tasks.name[i]] };
  }

  laneOf(i) {
    const { offset } = this.run.tasks;
    let lane = 0;
    while (offset[lane + 1] <= i) lane++;
    return lane;
  }

  hover(x, y) {
    const place = this.lanes.at(y);
    this.canvas.classList.toggle("opens", Boolean(place) && x < this.lanes.gutter && this.operators.canOpen(place.lane));
    if (!place || x < this.lanes.gutter) return this.hideTip();
    const per = (this.view.end - this.view.begin) / this.width, time = this.timeAt(x), { lane } = place;
    const task = this.operators.under(place, time);
    let text;
    if (task) text = words(task, this.lanes.described(lane));
    else {
      if (place.depth >= 0 || (this.lanes.isSingle(lane) && this.run.tasks)) return this.hideTip();
      const level = levelFor(this.run.levels, per);
      const [label, busy] = time < 0 ? [255, 0] : cell(level, lane, time, time + per);
      if (label === 255) return this.hideTip();
      text = `mostly ${this.drawing.labels[label]}, ${percent(busy / 255, { decimals: 0 })} busy\n${this.lanes.described(lane)}\nat ${duration(time)}, bins of ${duration(level.bin_ns)}`;
    }
    this.tip.textContent = text;
    this.tip.hidden = false;
    this.tip.style.left = `${Math.min(x + 12, this.canvas.clientWidth - Math.min(this.tip.offsetWidth, 420) - 4)}px`;
    this.tip.style.top = `${y + 18 + this.tip.offsetHeight > this.height ? y - this.tip.offsetHeight - 6 : y + 18}px`;
  }

  hideTip() { this.tip.hidden = true; }

  // The facts of a task of the run that is shown, as lines.
  factsOf(task) {
    const { tasks } = this.run;
    return tasks?.facts && task.index >= 0 ? this.drawing.facts[tasks.facts[task.index]] : [];
  }

  select(task) {
    this.selected = task;
    this.panel.hidden = !task;
    this.panel.replaceChildren(...this.said(task));
    this.moved();
    if (task) {
      this.announcement.textContent = words(task, this.lanes.described(task.lane));
      if (task.start > this.view.end || task.start + task.duration < this.view.begin) {
        const half = (this.view.end - this.view.begin) / 2;
        return this.show(task.start - half, task.start + half);
      }
    }
    this.draw();
  }

  // What the panel says of the task or operator that is selected.
  said(task) {
    if (!task) return [];
    const { operators } = this, lane = this.lanes.described(task.lane), choose = (piece) => this.reveal(this.describe(piece), false);
    if (task.operator) return operatorPanel(task, lane, { ...operators.facts(task.operator), choose });
    return panel(task, lane, { links: this.links, facts: this.factsOf(task), around: operators.around(task.index), choose, describe: (piece) => this.describe(piece) });
  }

  neighbour(step) {
    const { run: { tasks }, selected } = this;
    if (selected?.operator) return this.operators.neighbour(selected, step);
    if (!tasks) return;
    const lane = selected?.lane ?? this.lanes.inView(1).find(({ lane: each, y }) => y >= 0 && this.lanes.isSingle(each))?.lane;
    const [low, high] = [tasks.offset[lane], tasks.offset[lane + 1]];
    const at = selected ? selected.index + step : visible(tasks, lane, this.view.begin, this.view.end)[0];
    if (at >= low && at < high) this.select(this.describe(at, lane));
  }
}

const words = (task, lane) => `${task.name}\n${task.label}, ${duration(task.duration)} from ${duration(task.start)}\n${lane}`;
