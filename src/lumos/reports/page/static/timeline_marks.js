// What is drawn over the lanes of a timeline: names, the critical path, launches, the task that is selected, the lanes' names, the ruler.

import { tickText } from "lumos/format.js";
import { NESTED, RULER } from "lumos/timeline_lanes.js";
import { isDark, style } from "lumos/theme.js";
import { visible } from "lumos/timeline_paint.js";

// More arrows than this are not drawn: zoom in.
const MOST_FLOWS = 1500;

export function paintNames(timeline, context, tasks, lanes) {
  context.font = `${Math.min(timeline.lanes.row - 3, 11)}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  const letter = context.measureText("abcdefghij").width / 10;
  const { names, view: { begin, end } } = timeline;
  for (const { lane } of lanes) {
    const [low, high] = visible(tasks, lane, begin, end);
    if (high - low > timeline.width) continue;
    for (let i = low; i < high; i++) {
      const left = Math.max(timeline.x(tasks.start[i]), timeline.lanes.gutter), right = Math.min(timeline.x(tasks.start[i] + tasks.duration[i]), timeline.lanes.gutter + timeline.width);
      const letters = Math.floor((right - left - 6) / letter);
      if (letters < 3) continue;
      context.fillStyle = readable(timeline.colour(timeline.drawing.labels[tasks.label[i]]));
      context.fillText(names[tasks.name[i]].slice(0, letters), left + 3, timeline.lanes.y(lane) + timeline.lanes.row / 2 + 0.5, right - left - 5);
    }
  }
}

export function paintPath(timeline, context) {
  const { path } = timeline.run;
  if (!path) return;
  context.fillStyle = isDark() ? "#ffffff" : "#111111";
  let painted = -1, onLane = -1;
  for (let i = 0; i < path.lane.length; i++) {
    const x0 = timeline.x(path.start[i]), x1 = timeline.x(path.start[i] + path.duration[i]);
    if (!timeline.lanes.isShown(path.lane[i]) || x1 < timeline.lanes.gutter || x0 > timeline.lanes.gutter + timeline.width) continue;
    if (path.lane[i] === onLane && x1 - painted < 0.5) continue;
    const left = Math.max(x0, timeline.lanes.gutter);
    context.fillRect(left, timeline.lanes.y(path.lane[i]) + timeline.lanes.row - 1, Math.max(Math.min(x1, timeline.lanes.gutter + timeline.width) - left, 1), 3);
    [painted, onLane] = [x1, path.lane[i]];
  }
}

export function paintSelected(timeline, context) {
  const s = timeline.selected, { lanes } = timeline;
  if (!s || !lanes.isShown(s.lane) || (s.operator && !lanes.depth.has(s.lane))) return;
  const y = lanes.y(s.lane) + (s.operator ? lanes.row + s.depth * NESTED + 1 : 0);
  context.strokeStyle = isDark() ? "#ffffff" : "#000000";
  context.lineWidth = 2;
  const x0 = Math.max(timeline.x(s.start), timeline.lanes.gutter), x1 = Math.min(timeline.x(s.start + s.duration), timeline.lanes.gutter + timeline.width);
  context.strokeRect(x0, y, Math.max(x1 - x0, 2), s.operator ? NESTED - 1 : lanes.row);
}

// Arrows: of the task that is selected, to what it waited for and what waits for it; and all launches in view, where they are asked for.
export function paintFlows(timeline, context) {
  const { links, selected, view } = timeline;
  if (!links) return;
  context.save();
  context.beginPath();
  context.rect(timeline.lanes.gutter, RULER, timeline.width, timeline.height - RULER);
  context.clip();
  const all = timeline.showFlows ? links.launches(view.begin, view.end, MOST_FLOWS) : null;
  context.strokeStyle = style("--soft");
  context.lineWidth = 0.8;
  for (const [from, to] of all ?? []) arrow(timeline, context, links, from, to);
  if (selected && !selected.operator) {
    context.strokeStyle = context.fillStyle = style("--accent");
    context.lineWidth = 1.6;
    for (const { piece } of links.before(selected.index)) arrow(timeline, context, links, piece, selected.index);
    for (const { piece } of links.after(selected.index)) arrow(timeline, context, links, selected.index, piece);
  }
  context.restore();
}

// From where one task lets the other start (its end; of one that goes on, where the other starts) to the other's start.
function arrow(timeline, context, { tasks, laneOf }, from, to) {
  const lanes = [laneOf[from], laneOf[to]];
  if (lanes[0] === lanes[1] || lanes.some((lane) => !timeline.lanes.isShown(lane))) return;
  const leaves = timeline.x(Math.min(tasks.start[from] + tasks.duration[from], Math.max(tasks.start[to], tasks.start[from]))), arrives = timeline.x(tasks.start[to]);
  const [y0, y1] = lanes.map((lane) => timeline.lanes.y(lane) + timeline.lanes.row / 2), bend = Math.max(Math.abs(arrives - leaves) / 2, 8);
  context.beginPath();
  context.moveTo(leaves, y0);
  context.bezierCurveTo(leaves + bend, y0, arrives - bend, y1, arrives, y1);
  context.stroke();
  context.fillRect(arrives - 2, y1 - 2, 4, 4);
}

export function paintGutter(timeline, context) {
  context.fillStyle = style("--paper");
  context.fillRect(0, 0, timeline.lanes.gutter - 4, timeline.height);
  context.textBaseline = "middle";
  context.font = `${Math.min(timeline.lanes.row, 12)}px system-ui, sans-serif`;
  const several = timeline.drawing.lanes.length > 1;
  let before = null;
  for (const { lane } of timeline.lanes.inView(1)) {
    const { rank, name } = timeline.drawing.lanes[lane];
    const alike = timeline.lanes.alike.get(rank) ?? 1, title = rank === before ? "" : `r${rank}${alike > 1 ? ` ×${alike}` : ""}`;
    before = rank;
    const y = timeline.lanes.y(lane) + timeline.lanes.row / 2;
    context.fillStyle = style("--ink");
    if (several && title) context.fillText(title, 6, y, alike > 1 ? 72 : 28);
    context.fillStyle = style("--soft");
    const left = (!several ? 6 : timeline.lanes.grouped ? 82 : 36) + (timeline.operators.canOpen(lane) ? 12 : 0), letters = Math.floor((timeline.lanes.gutter - left) / 6.2);
    if (timeline.operators.canOpen(lane)) context.fillText(timeline.lanes.depth.has(lane) ? "▾" : "▸", left - 13, y);
    context.fillText(name.length > letters ? `${name.slice(0, letters - 1)}…` : name, left, y, timeline.lanes.gutter - left - 6);
  }
}

export function paintRuler(timeline, context) {
  const { begin, end } = timeline.view;
  context.fillStyle = style("--paper");
  context.fillRect(0, 0, timeline.lanes.gutter + timeline.width, RULER);
  context.fillStyle = style("--soft");
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  const raw = (end - begin) / Math.max(timeline.width / 110, 1), power = 10 ** Math.floor(Math.log10(raw));
  const tick = [1, 2, 5, 10].map((m) => m * power).find((t) => t >= raw);
  for (let at = Math.ceil(begin / tick) * tick; at < end; at += tick) {
    context.fillRect(timeline.x(at), RULER - 5, 1, 5);
    const text = tickText(at, tick, end), left = timeline.x(at) + 3;
    if (left + context.measureText(text).width <= timeline.lanes.gutter + timeline.width) context.fillText(text, left, RULER / 2 - 1);
  }
}

// Black or white, whichever is readable on a colour (by the relative luminance of WCAG 2).
function readable(hex) {
  const [r, g, b] = [1, 3, 5].map((i) => (parseInt(hex.slice(i, i + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.3 ? "#000000" : "#ffffff";
}
