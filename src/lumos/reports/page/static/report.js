// The page of a report: its parts in order, each with a heading.

import { el } from "lumos/dom.js";
import * as parts from "lumos/parts.js";
import { callRuns, setTheme } from "lumos/theme.js";
import { timelines } from "lumos/timelines.js";

// [name, heading, what it shows, the function that draws it, whether a document has it]
const PARTS = [
  ["findings", "What to fix first", "What makes the step longer than it needs to be. Each finding is priced by simulating the job without it; the one that saves most once those above it are fixed comes first.", parts.findings, (doc) => doc.diagnosis],
  ["changed", "What if", "The changed job against the replayed one. Both are simulated, so the replay's error cancels in the difference.", parts.whatif, (doc) => doc.whatif],
  ["breakdown", "Where the time goes", "The time of each step of the job four ways: on its ranks ran device work (or, without a device, operators) alone, together with communication, communication alone, or neither.", parts.breakdown],
  ["timeline", "Timeline", "What every thread and stream does in the time of one step. Zoomed out, a cell shows the class of work that took most of it, as high as the share that was busy.", null],
  ["path", "Critical path", "The chain of tasks that sets the step, and what its time went to. Only what is on it can make the step shorter.", parts.path],
  ["busy", "How busy the devices were", "The busy share of each millisecond of a step (coarser where it lasts more than 100 s).", parts.busy],
  ["classes", "Time by class of work", "Own time without waiting for peers, a step; the mean over the ranks and the steps that count.", parts.classes],
  ["collectives", "Collectives", "Waiting for the last rank and the transfer itself are shown separately where every member was recorded.", parts.collectives, (doc) => doc.collectives.rows.length],
  ["stragglers", "Stragglers", "How far each rank is off the median rank, class by class, and what its slowness costs the job.", parts.stragglers, (doc) => doc.stragglers],
  ["outline", "Blocks", "One step of one rank cut into layers, phases and microbatches.", parts.outline, (doc) => doc.outline],
  ["memory", "Memory", "Allocated memory over the recording.", parts.memory, (doc) => doc.memory.length],
  ["diagnostics", "What is odd or missing", "Findings in the input, and what each costs the answer.", parts.diagnostics],
  ["about", "How this was made", "", parts.about],
];

export function section(id, title, what) {
  const body = el("div");
  return { body, node: el("section", { class: "part", id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), what ? el("p", { class: "what" }, what) : null, body) };
}

export function themeButton() {
  const names = ["auto", "light", "dark"];
  let at = 0;
  const button = el("button", { type: "button", class: "noprint", onclick: () => { at = (at + 1) % 3; setTheme(names[at]); button.textContent = `theme: ${names[at]}`; } }, "theme: auto");
  return button;
}

// The timeline of a report that holds those of all its steps, or of the first ones.
function ownTimelines(doc) {
  const steps = parts.stepOptions(doc).filter(([name]) => name === doc.step || name in doc.other_timelines);
  return timelines(steps, doc.step, async (step) => (step === doc.step ? doc.timeline : doc.other_timelines[step]));
}

// before: sections that come before those of the report, behind what to fix first. timeline: makes the timeline, where the document has none.
export async function show(doc, { before = [], timeline = ownTimelines } = {}) {
  callRuns(doc.called);
  const main = document.getElementById("parts");
  main.replaceChildren();
  const top = document.getElementById("summary");
  top.replaceChildren();
  parts.summary(doc, top);
  document.getElementById("headline").textContent = doc.headline;
  const made = [];
  for (const [id, title, what, draw, has] of PARTS) if (!has || has(doc)) made.push({ id, title, draw, ...section(id, title, what) });
  made.splice(doc.diagnosis ? 1 : 0, 0, ...before);
  main.append(...made.map((m) => m.node));
  document.getElementById("contents").replaceChildren(...made.map((m) => el("li", {}, el("a", { href: `#${m.id}` }, m.title))));
  const shown = await timeline(doc);
  made.find((m) => m.id === "timeline").body.append(shown.element);
  await new Promise(requestAnimationFrame);
  document.documentElement.dataset.opened = Math.round(performance.now());
  await shown.timeline.loaded;
  document.documentElement.dataset.loaded = Math.round(performance.now());
  for (const { draw, body } of made) if (draw) await draw(doc, body);
  await shown.follow();
  document.documentElement.dataset.state = "ready";
  document.documentElement.dataset.ready = Math.round(performance.now());
}
