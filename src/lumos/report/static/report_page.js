// Starts a report that is a file: its data and plotly are inside the page.

import { inflate } from "lumos/columns.js";
import { show, themeButton } from "lumos/report.js";

async function load() {
  const source = new TextDecoder().decode(await inflate(document.getElementById("plotly").textContent));
  document.head.append(Object.assign(document.createElement("script"), { textContent: source }));
  return window.Plotly;
}

// Only when a chart is drawn: the headline and the timeline come first.
let plotly;
window.lumosPlotly = () => (plotly ??= load());
document.getElementById("theme").append(themeButton());
await show(JSON.parse(document.getElementById("data").textContent));
