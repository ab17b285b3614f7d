// The contents of a page that is one file: its data, and plotly, compressed.

import { inflate } from "lumos/columns.js";

export const data = JSON.parse(document.getElementById("data").textContent);

async function load() {
  const source = new TextDecoder().decode(await inflate(document.getElementById("plotly").textContent));
  document.head.append(Object.assign(document.createElement("script"), { textContent: source }));
  return window.Plotly;
}

// Load plotly only when a chart is drawn, so that the headline and the timeline appear first.
let plotly;
window.lumosPlotly = () => (plotly ??= load());
