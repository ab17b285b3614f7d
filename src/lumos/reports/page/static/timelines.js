// The timeline of any step of a job, and the address of what it shows.

import { el, selector } from "lumos/dom.js";
import { Timeline } from "lumos/timeline.js";
import { linkedView, viewLink } from "lumos/view_link.js";

const PAUSE_MS = 250;

// steps: [name, text] of each step that has a timeline. first: the one shown first. drawing: async (step) → what
// lumos.reports.page.timeline_levels.drawing returns.
// Returns {element, timeline (the one that is shown), follow}.
export async function timelines(steps, first, drawing) {
  const holder = el("div"), made = { timeline: null };
  let shown = null, timer = 0;
  async function choose(step) {
    if (shown === step) return;
    made.timeline = await Timeline.create(await drawing(step));
    made.timeline.onview = keep;
    shown = select.value = step;
    holder.replaceChildren(made.timeline.element);
    window.lumos = { timeline: made.timeline };
  }
  // Writes what is shown into the address, once it rests.
  function keep() {
    clearTimeout(timer);
    timer = setTimeout(() => window.history.replaceState(null, "", viewLink({ step: shown, ...made.timeline.state() })), PAUSE_MS);
  }
  made.follow = async () => {
    const view = linkedView(window.location.hash);
    if (!view) return;
    if (view.step && steps.some(([name]) => name === view.step)) await choose(view.step);
    made.element.closest("section")?.scrollIntoView();
    await made.timeline.goTo(view);
  };
  const chooser = selector("step", steps, first, async (step) => { await choose(step); keep(); });
  const select = chooser.querySelector("select");
  made.element = el("div", {}, steps.length > 1 ? el("div", { class: "bar" }, chooser) : null, holder);
  await choose(first);
  window.addEventListener("hashchange", made.follow);
  return made;
}
