// Light and dark, and the colours of classes of work: Okabe and Ito's palette, which colour-blind people can distinguish, with
// lighter and darker variants for related classes, which differ in lightness as well as in hue.

const CLASS = {
  gemm: "#0072b2", attention: "#56b4e9", convolution: "#4a5fc1", collective: "#d55e00", transfer: "#d55e00", waiting: "#f0d97a",
  elementwise: "#009e73", normalisation: "#66c2a4", softmax: "#0f7f60", reduction: "#a3d9b1", pooling: "#3d7a63", embedding: "#b8d000",
  optimizer: "#e69f00", memcpy: "#cc79a7", memset: "#e5b8d2", sorting: "#00674b", other: "#8c6bb1",
  "cpu operators": "#6d7f94", operators: "#6d7f94", "between operators": "#c9d2db", "cpu between operators": "#c9d2db", "cpu launches": "#8aa1c1", "launch calls": "#8aa1c1",
  "cpu runtime calls": "#a2a9b3", "runtime calls": "#a2a9b3", "cpu synchronisation": "#b0885a", "synchronising calls": "#b0885a",
  "forward-compute": "#56b4e9", "backward-compute": "#0072b2", "launch delay": "#c9d2db", idle: "#e3e3e3", "launch latency": "#cc79a7",
  "kernel gaps": "#999999", "communication, waiting unknown": "#f08a4b",
  "CPU work": "#6d7f94", kernels: "#0072b2", communication: "#d55e00", "launches and gaps": "#cc79a7", "late start": "#b8d000",
};
const SPARE = ["#009e73", "#e69f00", "#cc79a7", "#8c6bb1", "#b8d000", "#66c2a4", "#00674b", "#3d7a63", "#a3d9b1", "#b0885a", "#e5b8d2", "#d55e00"];

// The four parts of a step.
export const PARTS = [
  ["exposed_compute", "compute alone", "#0072b2"], ["overlapped", "compute and communication", "#009e73"],
  ["exposed_communication", "communication alone", "#d55e00"], ["other", "neither", "#b9c0c8"],
];

// The named parts of a step: what each is called and what it is.
export const NAMED = {
  compute: ["compute", "work other than communication"],
  communication: ["communication", "nothing else, and all members there (or not recorded)"],
  pipeline_bubble: ["pipeline bubble", "waiting in a send or receive for the other stage"],
  imbalance: ["imbalance", "waiting in a collective for a rank that comes later"],
  data_loading: ["data loading", "nothing launched, while the loop loads data"],
  host_between_operators: ["host between operators", "nothing launched, while Python runs between operators"],
  host: ["host", "nothing launched, in operators and calls"],
  kernel_gap: ["kernel gaps", "the pause of a device between two tasks"],
  wait: ["waits", "for other device work or a synchronisation"],
  unexplained: ["unexplained", "no known cause"],
};

export const RUN = { measured: "#0072b2", replayed: "#d55e00", changed: "#009e73" };

// Returns a function from class to colour; an unknown class gets a spare colour, always the same in one document.
export function palette(labels) {
  const spare = labels.filter((l) => !(l in CLASS)).sort();
  return (label) => CLASS[label] ?? SPARE[spare.indexOf(label) % SPARE.length] ?? "#999999";
}

const listeners = new Set();
const system = window.matchMedia("(prefers-color-scheme: dark)");
let chosen = "auto";

export const isDark = () => document.documentElement.dataset.theme === "dark";

export function onTheme(listener) {
  listeners.add(listener);
}

export function setTheme(name) {
  chosen = name;
  apply(name === "auto" ? system.matches : name === "dark");
}

function apply(dark) {
  const before = isDark();
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  if (before === dark) return;
  values.clear();
  for (const listener of listeners) listener();
}

// The value of a variable of the style sheet. Values are cached, because asking the browser makes it lay out the page.
const values = new Map();
export function style(name) {
  if (!values.has(name)) values.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return values.get(name);
}

system.addEventListener("change", () => setTheme(chosen));
window.addEventListener("beforeprint", () => apply(false));
window.addEventListener("afterprint", () => setTheme(chosen));
setTheme("auto");
