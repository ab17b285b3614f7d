// What is known of the task that is selected: its time, its facts, what it waited for and what waits for it.

import { el, folded } from "lumos/dom.js";
import { duration } from "lumos/format.js";

const MOST_SHOWN = 6, LONGEST_NAME = 56;

const short = (name) => (name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1)}…` : name);

// task: as Timeline.describe returns it. links: TaskLinks of its run, or null. facts: lines of text. choose: (piece) → selects it. describe: (piece) → task.
export function panel(task, lane, { links, facts, choose, describe }) {
  if (!task) return [];
  const rows = [["class", task.label], ["time", `${duration(task.duration)} from ${duration(task.start)}`], ["where", `rank ${lane.rank}, ${lane.name}`]];
  const inside = facts.find((line) => line.startsWith("inside: "));
  for (const line of facts) if (line !== inside) rows.push([line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]);
  const parts = [el("h3", {}, task.name), el("dl", { class: "facts" }, ...rows.flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]))];
  if (inside) parts.push(nested(inside.slice(8).split(" › "), task.name));
  if (!links) return [...parts, el("p", { class: "hint" }, "Zoom in, or choose a step with fewer tasks, to see what it waited for.")];
  const before = links.before(task.index), after = links.after(task.index);
  const last = before.length ? links.end(before[0].piece) : 0;
  const one = ({ piece, kind }, note) => {
    const other = describe(piece);
    return el("li", {}, el("button", { type: "button", class: "link", title: other.name, onclick: () => choose(piece) }, short(other.name)), el("span", { class: "hint" }, ` ${kind}; ${note(other)}`));
  };
  const list = (title, found, note) => el("div", {}, el("h3", {}, title), found.length ? el("ul", { class: "waits" }, ...found.slice(0, MOST_SHOWN).map((f) => one(f, note))) : el("p", { class: "hint" }, "nothing in this step"),
    found.length > MOST_SHOWN ? folded(`and ${found.length - MOST_SHOWN} more`, el("ul", { class: "waits" }, ...found.slice(MOST_SHOWN).map((f) => one(f, note)))) : null);
  const ended = (other) => `ended ${duration(Math.abs(task.start - other.start - other.duration))} ${other.start + other.duration <= task.start ? "before it began" : "after it began"}${other.start + other.duration === last ? ", the last" : ""}`;
  const began = (other) => `began ${duration(Math.abs(other.start - task.start - task.duration))} ${other.start >= task.start + task.duration ? "after it ended" : "before it ended"}`;
  return [...parts, el("div", { class: "waiting" }, list("It waited for", before, ended), list("Waits for it", after, began))];
}

// The operators around a task, the outermost first, each one deeper.
function nested(names, name) {
  let inner = el("div", { class: "nested" }, el("strong", {}, name));
  for (const outer of names.reverse()) inner = el("div", { class: "nested" }, outer, inner);
  return folded("The operators around it", inner);
}
