// Find tasks by name in a timeline: how many there are, and the way from one to the next.

import { el } from "lumos/dom.js";

// timeline: has names, run, dim, lanes, operators, describe(piece) and select(task).
export class TaskSearch {
  constructor(timeline) {
    this.timeline = timeline;
    [this.hits, this.at] = [[], -1];
    this.field = el("input", { type: "search", placeholder: "find a name", "aria-label": "find tasks by name", oninput: () => timeline.find(this.field.value) });
    this.field.addEventListener("keydown", (e) => { if (e.key === "Enter") { e.preventDefault(); this.step(e.shiftKey ? -1 : 1); } });
    this.count = el("span", { class: "hint", "aria-live": "polite" });
    const button = (text, label, way) => el("button", { type: "button", "aria-label": label, title: label, onclick: () => this.step(way) }, text);
    this.element = el("span", { class: "group search" }, this.field, button("‹", "previous hit", -1), button("›", "next hit", 1), this.count);
  }

  // The hits of a text among the tasks of the run that is shown, in the order of their starts.
  update(wanted) {
    const { tasks } = this.timeline.run, { dim } = this.timeline;
    [this.hits, this.at] = [[], -1];
    if (wanted && tasks) {
      const { lanes, operators: { nested } } = this.timeline;
      for (let lane = 0; lane + 1 < tasks.offset.length; lane++)
        if (lanes.isShown(lane)) for (let i = tasks.offset[lane]; i < tasks.offset[lane + 1]; i++) if (!dim[tasks.name[i]]) this.hits.push({ start: tasks.start[i], piece: i });
      // What has no time of its own, such as a mark around a part of the step, is found as an operator.
      nested?.first.forEach((first, operator) => {
        if (first < 0 && nested.lane[operator] >= 0 && lanes.isShown(nested.lane[operator]) && !dim[nested.name[operator]]) this.hits.push({ start: nested.start[operator], operator });
      });
      this.hits.sort((a, b) => a.start - b.start);
    }
    this.say(wanted);
  }

  // Whether ranks are shown whose tasks the drawing lacks.
  get partial() {
    const { lanes } = this.timeline;
    return lanes.shown.some((lane) => !lanes.isSingle(lane));
  }

  say(wanted) {
    const { hits, at } = this;
    if (!wanted) this.count.textContent = "";
    else if (!this.timeline.run.tasks) this.count.textContent = "no tasks to search: levels only";
    else this.count.textContent = (at < 0 ? `${hits.length.toLocaleString("en")} hit${hits.length === 1 ? "" : "s"}` : `${(at + 1).toLocaleString("en")} of ${hits.length.toLocaleString("en")}`) + (this.partial ? " on the ranks with tasks" : "");
  }

  // The next or the previous hit, from the task that is selected, else from the left edge.
  step(way) {
    const { hits, timeline } = this;
    if (!hits.length) return;
    const from = timeline.selected ? timeline.selected.start : timeline.view.begin - way;
    if (this.at < 0) this.at = way > 0 ? hits.findIndex((hit) => hit.start >= from) : hits.findLastIndex((hit) => hit.start <= from);
    else this.at += way;
    if (this.at < 0 || this.at >= hits.length) this.at = way > 0 ? 0 : hits.length - 1;
    const { piece, operator } = hits[this.at];
    if (operator) timeline.operators.reveal(operator);
    else timeline.select(timeline.describe(piece));
    this.say(true);
  }
}
