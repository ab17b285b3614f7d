// Charts by plotly, in the page's theme. Plotly comes from `window.lumosPlotly()`, which the page sets.

import { cut } from "lumos/format.js";
import { onTheme, style } from "lumos/theme.js";

const drawn = new Map();

// On a page narrower than this, the legend has a line for each name: pixels, as those of a line.
const NARROW = 560, LEGEND_LINE = 20;

// Plotly interprets some markup in its texts, but names from traces are not markup.
export const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

// A name for plotly in so many characters.
export const short = (text, length = 60) => plain(cut(text, length));

export async function chart(node, traces, layout = {}) {
  node.classList.add("chart");
  if (layout.height && node.clientWidth < NARROW) layout = { ...layout, height: layout.height + LEGEND_LINE * legend(traces) };
  drawn.set(node, { traces, layout });
  if (layout.height) node.style.height = `${layout.height}px`; // plotly reads it when the window is resized
  const plotly = await window.lumosPlotly();
  await plotly.react(node, traces, themed(layout), { displaylogo: false, responsive: true, displayModeBar: false });
  return node;
}

// How many names the legend of traces lists; none where there is but one.
function legend(traces) {
  const names = new Set(traces.filter((t) => t.name && t.showlegend !== false).map((t) => t.name));
  return names.size > 1 ? names.size : 0;
}

function themed(layout) {
  const axis = { gridcolor: style("--line"), zerolinecolor: style("--line"), linecolor: style("--line"), automargin: true };
  const out = {
    font: { family: "system-ui, sans-serif", size: 12, color: style("--ink") },
    colorway: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#6d7f94"],
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 60, r: 16, t: 12, b: 40 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, hoverlabel: { align: "left", namelength: -1 },
    ...layout,
  };
  for (const key of ["xaxis", "yaxis", ...Object.keys(layout).filter((k) => /^[xy]axis\d+$/.test(k))]) out[key] = { ...axis, ...layout[key] };
  return out;
}

onTheme(async () => {
  if (!drawn.size) return;
  const plotly = await window.lumosPlotly();
  for (const [node, { layout }] of drawn) if (node.isConnected) plotly.relayout(node, themed(layout));
});
