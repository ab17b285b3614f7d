// Charts by plotly, in the page's theme. Plotly comes from `window.lumosPlotly()`, which the page sets.

import { onTheme, style } from "lumos/theme.js";

const drawn = new Map();

// Plotly interprets some markup in its texts, but names from traces are not markup.
export const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

export function short(text, length = 60) {
  return plain(text.length > length ? `${text.slice(0, length - 1)}…` : text);
}

export async function chart(node, traces, layout = {}) {
  node.classList.add("chart");
  drawn.set(node, { traces, layout });
  if (layout.height) node.style.height = `${layout.height}px`; // plotly reads it when the window is resized
  const plotly = await window.lumosPlotly();
  await plotly.react(node, traces, themed(layout), { displaylogo: false, responsive: true, displayModeBar: false });
  return node;
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
