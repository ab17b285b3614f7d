// The explorer: waits for the job to be read, then shows the bench and the report's parts.

import { ask } from "lumos/api.js";
import { bench } from "lumos/bench.js";
import { el } from "lumos/dom.js";
import { bytes } from "lumos/format.js";
import { stepOptions } from "lumos/parts.js";
import { section, show, themeButton } from "lumos/report.js";
import { timelines } from "lumos/timelines.js";

let plotly;
window.lumosPlotly = () => (plotly ??= new Promise((done, fail) => {
  document.head.append(Object.assign(document.createElement("script"), { src: "/static/plotly.min.js", onload: () => done(window.Plotly), onerror: fail }));
}));

document.getElementById("theme").append(el("a", { href: "/api", class: "noprint" }, "API"), " ", themeButton());
if (await loaded()) await explore();

async function loaded() {
  const main = document.getElementById("parts"), headline = document.getElementById("headline");
  const bar = el("progress"), text = el("p", { class: "hint", "aria-live": "polite" });
  const act = el("button", { type: "button", onclick: () => ask("/api/cancel", null, "POST") }, "cancel");
  const box = el("div", { class: "progress" }, bar, text, act);
  for (;;) {
    const status = await ask("/api/status");
    document.documentElement.dataset.state = status.state;
    if (status.state === "done") return true;
    headline.textContent = status.paths.join(" ");
    if (!box.isConnected) main.replaceChildren(box);
    if (status.total) [bar.max, bar.value] = [status.total, status.done];
    else bar.removeAttribute("value");
    text.textContent = status.total ? `${status.doing}: ${bytes(status.done)} of ${bytes(status.total)}` : `${status.doing} …`;
    if (status.state !== "running") {
      main.replaceChildren(el("p", { class: "error" }, status.error || "Reading was cancelled."),
        el("button", { type: "button", onclick: async () => { await ask("/api/reload", null, "POST"); window.location.reload(); } }, "read again"));
      return false;
    }
    await new Promise((wake) => setTimeout(wake, 200));
  }
}

async function explore() {
  const [doc, names, settings] = await Promise.all([ask("/api/report"), ask("/api/names"), ask("/api/settings")]);
  const part = section("whatif", "What if", "Choose changes and adjust them: the job is simulated again each time. Both runs are simulated, so the replay's error cancels in the difference.");
  const made = bench(doc, names, settings);
  part.body.append(made.element);
  document.documentElement.dataset.state = "opening";
  await show(doc, { before: [{ id: "whatif", title: "What if", node: part.node, body: part.body, draw: made.start }], timeline: fetched });
}

// The timeline of any step, fetched when it is chosen.
function fetched(doc) {
  return timelines(stepOptions(doc), doc.step, (step) => ask(`/api/timeline?${new URLSearchParams({ step })}`));
}
