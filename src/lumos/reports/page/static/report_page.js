// Start a report that is one file, with its data and plotly inside the page.

import { el } from "lumos/dom.js";
import { data } from "lumos/offline.js";
import { show, themeButton } from "lumos/report.js";

document.getElementById("theme").append(themeButton());
try {
  await show(data);
} catch (problem) {
  // Most likely an old browser: it lacks DecompressionStream, import maps or the like.
  document.getElementById("summary").append(el("p", { class: "error" }, `This browser cannot show the report (${problem.message}); use one of 2023 or later.`));
  throw problem;
}
