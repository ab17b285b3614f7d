// What a page that is a file holds: its data, and plotly, compressed.

import { inflate } from "lumos/columns.js";

export const data = JSON.parse(document.getElementById("data").textContent);

async function load() {
  const source = new TextDecoder().decode(await inflate(document.getElementById("plotly").textContent));
  document.head.append(Object.assign(document.createElement("script"), { textContent: source }));
  return window.Plotly;
}

// Only when a chart is drawn: the headline and the timeline come first.
let plotly;
window.lumosPlotly = () => (plotly ??= load());
