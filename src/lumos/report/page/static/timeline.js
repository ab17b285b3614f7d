// The timeline of a step: all lanes at any zoom, with mouse and keyboard.

import { decodeRun, decodeTasks } from "lumos/columns.js";
import { choice, el } from "lumos/dom.js";
import { duration, percent } from "lumos/format.js";
import { cell, levelFor, MOST_TASKS, paintLevel, paintTasks, pixel, tasksInView, visible } from "lumos/timeline_paint.js";
import { isDark, onTheme, palette, style } from "lumos/theme.js";

const GUTTER = 168, RULER = 22, GAP = 3, TALLEST = 620;

export class Timeline {
  // drawing: what lumos.report.page.timeline_levels.drawing returns. detail: async (run, begin, end) → excerpt or null; fetches
  // tasks that the drawing lacks.
  static async create(drawing, detail = null) {
    const runs = await Promise.all(drawing.runs.map(decodeRun));
    return new Timeline(drawing, runs, detail);
  }

  constructor(drawing, runs, detail) {
    Object.assign(this, { drawing, runs, detail });
    this.run = runs[0];
    this.excerpts = new Map();
    this.names = drawing.names;
    this.length = Math.max(...runs.map((r) => r.length_ns), 1);
    this.view = { begin: 0, end: this.length };
    this.row = Math.max(11, Math.min(22, Math.floor(TALLEST / drawing.lanes.length) - GAP));
    this.top = 0;
    this.showPath = true;
    this.dim = null;
    this.selected = null;
    this.colour = palette(drawing.labels);
    this.colours = Uint32Array.from(drawing.labels, (l) => pixel(this.colour(l)));
    this.element = this.build();
    onTheme(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  build() {
    this.canvas = el("canvas", {
      tabindex: "0", role: "application", "aria-label":
        `Timeline of ${this.drawing.step}, ${this.drawing.lanes.length} lanes. Arrow keys pan and scroll, plus and minus zoom, Home shows all, N and P step through the tasks of a lane.`,
    });
    this.tip = el("div", { class: "tip", hidden: true });
    this.announcement = el("div", { class: "sr", "aria-live": "polite" });
    this.readout = el("span", { class: "hint" });
    const runs = choice("run", this.runs.map((r) => [r.source, r.source]), this.run.source, (source) => {
      this.run = this.runs.find((r) => r.source === source);
      this.selected = null;
      this.draw();
    });
    const path = el("label", {}, el("input", { type: "checkbox", checked: true, onchange: (e) => { this.showPath = e.target.checked; this.draw(); } }), " critical path");
    const find = el("input", { type: "search", placeholder: "find a name", "aria-label": "find tasks by name", oninput: (e) => this.find(e.target.value) });
    const button = (text, label, act) => el("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    const bar = el("div", { class: "bar" }, runs,
      button("+", "zoom in", () => this.zoom(0.5)), button("−", "zoom out", () => this.zoom(2)), button("all", "show all", () => this.show(0, this.length)),
      path, find, el("span", { class: "space" }), this.readout);
    const height = RULER + Math.min(this.drawing.lanes.length * (this.row + GAP) + 4, TALLEST);
    this.canvas.style.height = `${height}px`;
    this.listen();
    const present = new Set(this.runs.flatMap((r) => [...(r.levels.at(-1)?.label ?? [])]));
    const keys = this.drawing.labels.filter((_, i) => present.has(i)).map((label) => {
      const key = el("span", { class: "key" });
      key.style.background = this.colour(label);
      return el("span", {}, key, label);
    });
    return el("div", {}, bar, el("div", { class: "timeline" }, this.canvas, this.tip), this.announcement, el("div", { class: "legend" }, ...keys),
      el("p", { class: "hint" }, "Drag to pan; Ctrl + wheel, + and − zoom; arrows pan and scroll; Home shows all; N and P step through tasks; double-click zooms to a task. The line along a lane is the critical path."));
  }

  // ---- what is in view

  get width() { return Math.max(this.canvas.clientWidth - GUTTER, 10); }
  get height() { return this.canvas.clientHeight; }
  get deepest() { return Math.max(this.drawing.lanes.length * (this.row + GAP) + RULER - this.height + 4, 0); }

  show(begin, end) {
    const span = Math.min(Math.max(end - begin, 50), this.length * 1.05);
    begin = Math.min(Math.max(begin, -0.02 * this.length), this.length * 1.02 - span);
    this.view = { begin, end: begin + span };
    this.draw();
    this.fetchDetail();
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
    this.top = Math.min(Math.max(this.top + rows * (this.row + GAP), 0), this.deepest);
    this.draw();
  }

  find(text) {
    const wanted = text.trim().toLowerCase();
    this.wanted = wanted;
    this.dim = wanted ? Uint8Array.from(this.names, (n) => (n.toLowerCase().includes(wanted) ? 0 : 1)) : null;
    this.draw();
  }

  lanesInView(ratio) {
    const out = [];
    for (let lane = 0; lane < this.drawing.lanes.length; lane++) {
      const y = RULER + 2 + lane * (this.row + GAP) - this.top;
      if (y + this.row > RULER && y < this.height) out.push({ lane, y: Math.round((y - RULER) * ratio), height: Math.round(this.row * ratio) });
    }
    return out;
  }

  // The tasks to paint: {tasks, names, shift}, or null where bins are painted instead.
  tasksToPaint(lanes) {
    const { begin, end } = this.view;
    const candidates = [];
    if (this.run.tasks) candidates.push({ tasks: this.run.tasks, names: this.names, shift: 0 });
    const excerpt = this.excerpts.get(this.run.source);
    if (excerpt && excerpt.begin <= Math.max(begin, 0) && excerpt.end >= Math.min(end, this.run.length_ns)) candidates.push(excerpt);
    return candidates.find((c) => tasksInView(c.tasks, lanes, begin - c.shift, end - c.shift) <= MOST_TASKS) ?? null;
  }

  fetchDetail() {
    clearTimeout(this.waiting);
    if (!this.detail || this.run.tasks || this.tasksToPaint(this.lanesInView(1))) return;
    const { begin, end } = this.view;
    if ((end - begin) / this.width > this.run.levels[0].bin_ns * 2) return;
    this.waiting = setTimeout(async () => {
      const span = end - begin, run = this.run;
      const from = Math.max(Math.floor(begin - span), 0), to = Math.min(Math.ceil(end + span), run.length_ns);
      const found = await this.detail(run.source, from, to);
      if (!found) return;
      this.excerpts.set(run.source, { tasks: await decodeTasks(found.tasks), names: found.names, shift: from, begin: from, end: to });
      this.draw();
    }, 120);
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
    const wide = Math.round(canvas.clientWidth * ratio), high = Math.round(this.height * ratio);
    if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
    const context = canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, wide, high);
    const lanes = this.lanesInView(ratio);
    const image = this.image(Math.round(this.width * ratio), Math.round((this.height - RULER) * ratio));
    const found = this.tasksToPaint(lanes);
    const target = { pixels: image.pixels, width: image.data.width, height: image.data.height };
    image.pixels.fill(0);
    const dim = found && this.dim && (found.names === this.names ? this.dim : Uint8Array.from(found.names, (n) => (n.toLowerCase().includes(this.wanted) ? 0 : 1)));
    if (found) paintTasks(target, found.tasks, lanes, this.view, this.colours, dim, found.shift);
    else paintLevel(target, levelFor(this.run.levels, (this.view.end - this.view.begin) / target.width), lanes, this.view, this.colours);
    this.backdrop(context, ratio);
    image.context.putImageData(image.data, 0, 0);
    context.drawImage(image.canvas, Math.round(GUTTER * ratio), Math.round(RULER * ratio));
    context.scale(ratio, ratio);
    if (found) this.paintNames(context, found, lanes);
    if (this.showPath) this.paintPath(context);
    this.paintSelected(context);
    this.paintGutter(context);
    this.paintRuler(context);
    const { begin, end } = this.view;
    Object.assign(canvas.dataset, { begin: Math.round(begin), end: Math.round(end), mode: found ? "tasks" : "levels" });
    this.readout.textContent = `${duration(Math.min(end - begin, this.run.length_ns))} of ${duration(this.run.length_ns)}${found ? "" : `, in bins of ${duration(levelFor(this.run.levels, (end - begin) / target.width).bin_ns)}`}`;
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

  x(ns) { return GUTTER + ((ns - this.view.begin) / (this.view.end - this.view.begin)) * this.width; }
  y(lane) { return RULER + 2 + lane * (this.row + GAP) - this.top; }

  backdrop(context, ratio) {
    context.fillStyle = style("--panel");
    for (const { y, height } of this.lanesInView(ratio)) context.fillRect(GUTTER * ratio, RULER * ratio + y, this.width * ratio, height);
  }

  paintNames(context, { tasks, names, shift }, lanes) {
    context.font = `${Math.min(this.row - 3, 11)}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    const letter = context.measureText("abcdefghij").width / 10;
    const { begin, end } = this.view;
    for (const { lane } of lanes) {
      const [low, high] = visible(tasks, lane, begin - shift, end - shift);
      if (high - low > this.width) continue;
      for (let i = low; i < high; i++) {
        const left = Math.max(this.x(tasks.start[i] + shift), GUTTER), right = Math.min(this.x(tasks.start[i] + shift + tasks.duration[i]), GUTTER + this.width);
        const letters = Math.floor((right - left - 6) / letter);
        if (letters < 3) continue;
        context.fillStyle = readable(this.colour(this.drawing.labels[tasks.label[i]]));
        context.fillText(names[tasks.name[i]].slice(0, letters), left + 3, this.y(lane) + this.row / 2 + 0.5, right - left - 5);
      }
    }
  }

  paintPath(context) {
    const { path } = this.run;
    if (!path) return;
    context.fillStyle = isDark() ? "#ffffff" : "#111111";
    let painted = -1, onLane = -1;
    for (let i = 0; i < path.lane.length; i++) {
      const x0 = this.x(path.start[i]), x1 = this.x(path.start[i] + path.duration[i]);
      if (x1 < GUTTER || x0 > GUTTER + this.width) continue;
      if (path.lane[i] === onLane && x1 - painted < 0.5) continue;
      const left = Math.max(x0, GUTTER);
      context.fillRect(left, this.y(path.lane[i]) + this.row - 1, Math.max(Math.min(x1, GUTTER + this.width) - left, 1), 3);
      [painted, onLane] = [x1, path.lane[i]];
    }
  }

  paintSelected(context) {
    const s = this.selected;
    if (!s) return;
    context.strokeStyle = isDark() ? "#ffffff" : "#000000";
    context.lineWidth = 2;
    const x0 = Math.max(this.x(s.start), GUTTER), x1 = Math.min(this.x(s.start + s.duration), GUTTER + this.width);
    context.strokeRect(x0, this.y(s.lane), Math.max(x1 - x0, 2), this.row);
  }

  paintGutter(context) {
    context.fillStyle = style("--paper");
    context.fillRect(0, 0, GUTTER - 4, this.height);
    context.textBaseline = "middle";
    context.font = `${Math.min(this.row, 12)}px system-ui, sans-serif`;
    const last = this.drawing.lanes.length > 1;
    for (const { lane } of this.lanesInView(1)) {
      const { rank, name } = this.drawing.lanes[lane];
      const first = lane === 0 || this.drawing.lanes[lane - 1].rank !== rank;
      const y = this.y(lane) + this.row / 2;
      context.fillStyle = style("--ink");
      if (first && last) context.fillText(`r${rank}`, 6, y);
      context.fillStyle = style("--soft");
      context.fillText(name.length > 21 ? `${name.slice(0, 20)}…` : name, last ? 36 : 6, y);
    }
  }

  paintRuler(context) {
    const { begin, end } = this.view;
    context.fillStyle = style("--paper");
    context.fillRect(0, 0, GUTTER + this.width, RULER);
    context.fillStyle = style("--soft");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const raw = (end - begin) / Math.max(this.width / 110, 1), power = 10 ** Math.floor(Math.log10(raw));
    const tick = [1, 2, 5, 10].map((m) => m * power).find((t) => t >= raw);
    for (let at = Math.ceil(begin / tick) * tick; at < end; at += tick) {
      context.fillRect(this.x(at), RULER - 5, 1, 5);
      context.fillText(duration(Math.round(at)), this.x(at) + 3, RULER / 2 - 1);
    }
  }

  // ---- what is under the pointer

  laneAt(y) {
    const lane = Math.floor((y - RULER - 2 + this.top) / (this.row + GAP));
    return y > RULER && lane >= 0 && lane < this.drawing.lanes.length ? lane : -1;
  }

  taskAt(lane, time) {
    const found = this.tasksToPaint(this.lanesInView(1));
    if (!found) return null;
    const slack = (this.view.end - this.view.begin) / this.width;
    const [low, high] = visible(found.tasks, lane, time - found.shift - slack, time - found.shift + slack);
    let best = null, nearest = slack;
    for (let i = low; i < high; i++) {
      const start = found.tasks.start[i] + found.shift, end = start + found.tasks.duration[i];
      const away = Math.max(start - time, time - end, 0);
      if (away <= nearest) [best, nearest] = [i, away];
    }
    return best === null ? null : this.describe(found, lane, best);
  }

  describe({ tasks, names, shift }, lane, i) {
    return { lane, index: i, start: tasks.start[i] + shift, duration: tasks.duration[i], label: this.drawing.labels[tasks.label[i]], name: names[tasks.name[i]] };
  }

  hover(x, y) {
    const lane = this.laneAt(y);
    if (lane < 0 || x < GUTTER) return this.hideTip();
    const per = (this.view.end - this.view.begin) / this.width, time = this.view.begin + (x - GUTTER) * per;
    const { rank, name } = this.drawing.lanes[lane];
    const task = this.taskAt(lane, time);
    let text;
    if (task) text = words(task, rank, name);
    else {
      if (this.tasksToPaint(this.lanesInView(1))) return this.hideTip();
      const level = levelFor(this.run.levels, per);
      const [label, busy] = time < 0 ? [255, 0] : cell(level, lane, time, time + per);
      if (label === 255) return this.hideTip();
      text = `mostly ${this.drawing.labels[label]}, ${percent(busy / 255, { decimals: 0 })} busy\nrank ${rank}, ${name}\nat ${duration(time)}, bins of ${duration(level.bin_ns)}`;
    }
    this.tip.textContent = text;
    this.tip.hidden = false;
    this.tip.style.left = `${Math.min(x + 12, this.canvas.clientWidth - Math.min(this.tip.offsetWidth, 420) - 4)}px`;
    this.tip.style.top = `${y + 18 + this.tip.offsetHeight > this.height ? y - this.tip.offsetHeight - 6 : y + 18}px`;
  }

  hideTip() { this.tip.hidden = true; }

  select(task) {
    this.selected = task;
    if (task) {
      const { rank, name } = this.drawing.lanes[task.lane];
      this.announcement.textContent = words(task, rank, name);
      if (task.start > this.view.end || task.start + task.duration < this.view.begin) {
        const half = (this.view.end - this.view.begin) / 2;
        return this.show(task.start - half, task.start + half);
      }
    }
    this.draw();
  }

  neighbour(step) {
    const found = this.tasksToPaint(this.lanesInView(1));
    if (!found) return;
    const lane = this.selected?.lane ?? this.laneAt(RULER + this.row);
    const [low, high] = [found.tasks.offset[lane], found.tasks.offset[lane + 1]];
    const at = this.selected ? this.selected.index + step : visible(found.tasks, lane, this.view.begin - found.shift, this.view.end)[0];
    if (at >= low && at < high) this.select(this.describe(found, lane, at));
  }

  listen() {
    const { canvas } = this;
    let drag = null;
    const place = (e) => { const box = canvas.getBoundingClientRect(); return [e.clientX - box.left, e.clientY - box.top]; };
    canvas.addEventListener("pointerdown", (e) => {
      if (e.button) return;
      canvas.setPointerCapture(e.pointerId);
      drag = { x: e.clientX, y: e.clientY, view: this.view, top: this.top, moved: false };
      canvas.classList.add("dragging");
    });
    canvas.addEventListener("pointermove", (e) => {
      if (!drag) return this.hover(...place(e));
      const dx = e.clientX - drag.x, dy = e.clientY - drag.y;
      drag.moved ||= Math.abs(dx) + Math.abs(dy) > 4;
      if (!drag.moved) return;
      this.hideTip();
      this.top = Math.min(Math.max(drag.top - dy, 0), this.deepest);
      const shift = (-dx / this.width) * (drag.view.end - drag.view.begin);
      this.show(drag.view.begin + shift, drag.view.end + shift);
    });
    canvas.addEventListener("pointerup", (e) => {
      canvas.classList.remove("dragging");
      if (drag && !drag.moved) {
        const [x, y] = place(e), lane = this.laneAt(y);
        const time = this.view.begin + ((x - GUTTER) / this.width) * (this.view.end - this.view.begin);
        this.select(lane >= 0 && x > GUTTER ? this.taskAt(lane, time) : null);
      }
      drag = null;
    });
    canvas.addEventListener("pointerleave", () => this.hideTip());
    canvas.addEventListener("dblclick", (e) => {
      const s = this.selected;
      if (s) this.show(s.start - s.duration, s.start + 2 * s.duration);
      else this.zoom(0.25, (place(e)[0] - GUTTER) / this.width);
    });
    canvas.addEventListener("wheel", (e) => {
      if (e.ctrlKey || e.metaKey) this.zoom(Math.exp(e.deltaY / 300), (place(e)[0] - GUTTER) / this.width);
      else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.pan((e.deltaX || e.deltaY) / this.width);
      else if (document.activeElement === canvas && this.deepest > 0) this.scroll(e.deltaY / 40);
      else return;
      e.preventDefault();
    }, { passive: false });
    const keys = {
      ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), a: () => this.pan(-0.2), d: () => this.pan(0.2),
      ArrowUp: () => this.scroll(-3), ArrowDown: () => this.scroll(3), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), w: () => this.zoom(0.5),
      "-": () => this.zoom(2), s: () => this.zoom(2), Home: () => this.show(0, this.length), n: () => this.neighbour(1), p: () => this.neighbour(-1),
      Escape: () => this.select(null),
    };
    canvas.addEventListener("keydown", (e) => {
      if (!(e.key in keys) || e.ctrlKey || e.metaKey || e.altKey) return;
      e.preventDefault();
      keys[e.key]();
    });
  }
}

const words = (task, rank, lane) => `${task.name}\n${task.label}, ${duration(task.duration)} from ${duration(task.start)}\nrank ${rank}, ${lane}`;

// Black or white, whichever is readable on a colour (by the relative luminance of WCAG 2).
function readable(hex) {
  const [r, g, b] = [1, 3, 5].map((i) => (parseInt(hex.slice(i, i + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.3 ? "#000000" : "#ffffff";
}
