// Starts a report that is a file: its data and plotly are inside the page.

import { data } from "lumos/offline.js";
import { show, themeButton } from "lumos/report.js";

document.getElementById("theme").append(themeButton());
await show(data);
