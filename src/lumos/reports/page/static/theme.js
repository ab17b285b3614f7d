// Light and dark, and the colours of classes of work: a few, each for a family of classes, after Okabe and Ito's palette. Each has a
// contrast of at least 3 to the ground of the lanes, light and dark, and any two differ for people with colour blindness
// (tests/reports/page/test_palette.py). Pale are waiting and the time between operators, in which nothing works.

export const FAMILY = {
  matrix: "#0072b2", attention: "#4d94c4", communication: "#b84a00", elementwise: "#009e73", optimizer: "#b98500", memory: "#ce6f71",
  other: "#9c7bdd", operators: "#7e8fa3", calls: "#626d7a", synchronisation: "#945f2c",
};
export const PALE = { waiting: "#f0d97a", idle: "#c9d2db" };

const CLASS = {};
const families = {
  matrix: ["gemm", "convolution", "backward-compute", "kernels"],
  attention: ["attention", "forward-compute"],
  communication: ["collective", "transfer", "communication"],
  elementwise: ["elementwise", "normalisation", "softmax", "reduction", "pooling", "embedding", "sorting"],
  optimizer: ["optimizer", "late start", "late start of the rank"],
  memory: ["memcpy", "memset"],
  other: ["other", "launch latency", "launches and gaps", "kernel gaps"],
  operators: ["cpu operators", "operators", "CPU work"],
  calls: ["cpu launches", "launch calls", "cpu runtime calls", "runtime calls"],
  synchronisation: ["cpu synchronisation", "synchronising calls", "communication, waiting unknown"],
};
for (const [family, labels] of Object.entries(families)) for (const label of labels) CLASS[label] = FAMILY[family];
for (const label of ["between operators", "cpu between operators", "launch delay", "idle"]) CLASS[label] = PALE.idle;
CLASS.waiting = PALE.waiting;
const SPARE = Object.values(FAMILY);

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

// Their colours: work blue, waiting for others orange and yellow, the host grey and brown, the device's pauses green and pink.
export const NAMED_COLOUR = {
  compute: "#0072b2", communication: "#d55e00", pipeline_bubble: "#f0d97a", imbalance: "#e69f00", data_loading: "#b0885a",
  host_between_operators: "#c9d2db", host: "#6d7f94", kernel_gap: "#cc79a7", wait: "#009e73", unexplained: "#8c6bb1",
};

export const RUN = { measured: "#0072b2", replayed: "#d55e00", changed: "#009e73" };

// What the runs of a document are called: that of a job which no device ran is not called measured.
const CALLED = {};
export const called = (run) => CALLED[run] ?? run;
export const callRuns = (names) => Object.assign(CALLED, names);

// Returns a function from class to colour; an unknown class gets a spare colour, always the same in one document.
export function palette(labels) {
  const spare = labels.filter((l) => !(l in CLASS)).sort();
  return (label) => CLASS[label] ?? SPARE[spare.indexOf(label) % SPARE.length] ?? "#999999";
}

// Classes by their colour: [colour, classes], so that a legend has one entry for each.
export function byColour(labels) {
  const colour = palette(labels), found = new Map();
  for (const label of labels) found.set(colour(label), [...(found.get(colour(label)) ?? []), label]);
  return [...found];
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
