// A page of one figure.

import { chart } from "lumos/charts.js";
import { el } from "lumos/dom.js";
import { data } from "lumos/offline.js";
import { themeButton } from "lumos/report.js";

document.getElementById("theme").append(themeButton());
const drawing = el("div");
document.getElementById("parts").append(drawing);
await chart(drawing, data.data, { height: 720, hovermode: "closest", ...data.layout });
document.documentElement.dataset.state = "ready";
