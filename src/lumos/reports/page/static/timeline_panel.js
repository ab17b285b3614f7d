// What is known of the task that is selected: its time, its facts, what it waited for and what waits for it.

import { el, folded } from "lumos/dom.js";
import { duration } from "lumos/format.js";

const MOST_SHOWN = 6, LONGEST_NAME = 56;

const short = (name) => (name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1)}…` : name);

// task: as Timeline.describe returns it. lane: its lane in words. links: TaskLinks of its run, or null. facts: lines of text. around: the operators around it.
// choose: (piece) → selects it. describe: (piece) → task.
export function panel(task, lane, { links, facts, around, choose, describe }) {
  const parts = [...heading(task, lane, [["class", task.label]], facts), nested(around, task.name)];
  if (!links) return parts;
  const before = links.before(task.index), after = links.after(task.index);
  const last = before.length ? links.end(before[0].piece) : 0;
  const one = ({ piece, kind }, note) => {
    const other = describe(piece);
    return el("li", {}, el("button", { type: "button", class: "link", title: other.name, onclick: () => choose(piece) }, short(other.name)), el("span", { class: "hint" }, ` ${kind}; ${note(other)}`));
  };
  const list = (title, found, note) => el("div", {}, el("h3", {}, title), found.length ? el("ul", { class: "waits" }, ...found.slice(0, MOST_SHOWN).map((f) => one(f, note))) : el("p", { class: "hint" }, "nothing that is drawn"),
    found.length > MOST_SHOWN ? folded(`and ${found.length - MOST_SHOWN} more`, el("ul", { class: "waits" }, ...found.slice(MOST_SHOWN).map((f) => one(f, note)))) : null);
  const ended = (other) => `ended ${duration(Math.abs(task.start - other.start - other.duration))} ${other.start + other.duration <= task.start ? "before it began" : "after it began"}${other.start + other.duration === last ? ", the last" : ""}`;
  const began = (other) => `began ${duration(Math.abs(other.start - task.start - task.duration))} ${other.start >= task.start + task.duration ? "after it ended" : "before it ended"}`;
  return [...parts, el("div", { class: "waiting" }, list("It waited for", before, ended), list("Waits for it", after, began))];
}

// The same for an operator. own: its time without the operators inside it. launched: the device work of it and of those inside it.
export function operatorPanel(task, lane, { own, facts, around, launched, choose }) {
  const busy = launched.reduce((sum, other) => sum + other.duration, 0), many = launched.length;
  const rows = [["class", "operator"], ["its own time", `${duration(own)}, without the operators inside it`]];
  if (many) rows.push(["launched", `${many.toLocaleString("en")} task${many === 1 ? "" : "s"} of ${duration(busy)} on devices`]);
  const one = (other) => el("li", {}, el("button", { type: "button", class: "link", title: other.name, onclick: () => choose(other.piece) }, short(other.name)), el("span", { class: "hint" }, ` ${duration(other.duration)}`));
  const list = many ? el("div", {}, el("h3", {}, "It launched"), el("ul", { class: "waits" }, ...launched.slice(0, MOST_SHOWN).map(one)), many > MOST_SHOWN ? el("p", { class: "hint" }, `and ${(many - MOST_SHOWN).toLocaleString("en")} more`) : null) : null;
  return [...heading(task, lane, rows, facts), nested(around, task.name), list ?? ""];
}

function heading(task, lane, first, facts) {
  const rows = [...first, ["time", `${duration(task.duration)} from ${duration(task.start)}`], ["where", lane]];
  for (const line of facts) rows.push([line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]);
  return [el("h3", {}, task.name), el("dl", { class: "facts" }, ...rows.flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]))];
}

// The operators around a task, the outermost first, each one deeper, and a way to each in its thread.
function nested(around, name) {
  const outer = around.at(-1)?.name === name ? around.slice(0, -1) : around;
  if (!outer.length) return "";
  let inner = el("div", { class: "nested" }, el("strong", {}, name));
  for (const { name: text, open } of outer.toReversed()) inner = el("div", { class: "nested" }, open ? el("button", { type: "button", class: "link", title: `show ${text} in its thread`, onclick: open }, text) : text, inner);
  return folded("The operators around it", inner);
}
