// Find tasks by name in a timeline: how many there are, and the way from one to the next.

import { el } from "lumos/dom.js";

// timeline: has names, run, dim, visibleLanes(), describe(piece) and select(task).
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
      const shown = new Set(this.timeline.visibleLanes());
      for (let lane = 0; lane + 1 < tasks.offset.length; lane++)
        if (shown.has(lane)) for (let i = tasks.offset[lane]; i < tasks.offset[lane + 1]; i++) if (!dim[tasks.name[i]]) this.hits.push(i);
      this.hits.sort((a, b) => tasks.start[a] - tasks.start[b]);
    }
    this.say(wanted);
  }

  say(wanted) {
    const { hits, at } = this;
    if (!wanted) this.count.textContent = "";
    else if (!this.timeline.run.tasks) this.count.textContent = "too many tasks to search: zoom in";
    else this.count.textContent = at < 0 ? `${hits.length.toLocaleString("en")} hit${hits.length === 1 ? "" : "s"}` : `${(at + 1).toLocaleString("en")} of ${hits.length.toLocaleString("en")}`;
  }

  // The next or the previous hit, from the task that is selected, else from the left edge.
  step(way) {
    const { hits, timeline } = this, { tasks } = timeline.run;
    if (!hits.length) return;
    const from = timeline.selected ? timeline.selected.start : timeline.view.begin - way;
    if (this.at < 0) this.at = way > 0 ? hits.findIndex((i) => tasks.start[i] >= from) : hits.findLastIndex((i) => tasks.start[i] <= from);
    else this.at += way;
    if (this.at < 0 || this.at >= hits.length) this.at = way > 0 ? 0 : hits.length - 1;
    timeline.select(timeline.describe(hits[this.at]));
    this.say(true);
  }
}
