// Starts a report that is a file: its data and plotly are inside the page.

import { inflate } from "lumos/columns.js";
import { show, themeButton } from "lumos/report.js";

window.lumosPlotly = (async () => {
  const source = new TextDecoder().decode(await inflate(document.getElementById("plotly").textContent));
  document.head.append(Object.assign(document.createElement("script"), { textContent: source }));
  return window.Plotly;
})();
document.getElementById("theme").append(themeButton());
await show(JSON.parse(document.getElementById("data").textContent));
