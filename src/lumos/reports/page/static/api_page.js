// The page of the API, from its OpenAPI description: every request, its parameters, and how to send it from a shell.

import { ask } from "lumos/api.js";
import { el, folded, table } from "lumos/dom.js";
import { themeButton } from "lumos/report.js";

document.getElementById("theme").append(el("a", { href: "/" }, "explorer"), " ", themeButton());
const api = await ask("/openapi.json");
document.getElementById("summary").append(el("p", {}, api.info.summary, " The description itself: ", el("a", { href: "/openapi.json" }, "openapi.json"), "."));

const named = (schema) => schema?.$ref?.split("/").at(-1);
const kind = (s) => named(s) ?? (s.anyOf ? s.anyOf.map(kind).join(" or ") : s.type === "array" ? `list of ${kind(s.items)}` : s.type ?? "any");
const rows = (schema) => Object.entries(schema.properties ?? {}).map(([name, s]) => [name, kind(s), schema.required?.includes(name) ? "yes" : "no", s.description ?? ""]);
const columns = [{ title: "name", text: true }, { title: "type", text: true }, { title: "required", text: true }, { title: "meaning", text: true }];
// A table without the last column where that is empty.
const described = (caption, found) => (found.some((r) => r[3]) ? table(caption, columns, found) : table(caption, columns.slice(0, 3), found.map((r) => r.slice(0, 3))));

const parts = document.getElementById("parts");
for (const [path, methods] of Object.entries(api.paths))
  for (const [method, operation] of Object.entries(methods)) {
    const body = named(operation.requestBody?.content?.["application/json"]?.schema);
    const example = method === "get" ? `curl '${location.origin}${path}'` : `curl -X ${method.toUpperCase()} -H 'content-type: application/json' ${body ? "-d '{}' " : ""}'${location.origin}${path}'`;
    parts.append(el("section", { class: "part" }, el("h2", {}, `${method.toUpperCase()} ${path}`), el("p", { class: "what" }, operation.summary ?? ""),
      operation.parameters?.length ? described("Parameters", operation.parameters.map((p) => [p.name, kind(p.schema), p.required ? "yes" : "no", p.description ?? ""])) : null,
      body ? described(`Body: ${body}`, rows(api.components.schemas[body])) : null,
      folded("From a shell", el("pre", {}, example))));
  }
const extra = Object.entries(api.components?.schemas ?? {}).filter(([name]) => !/Error/.test(name));
parts.append(el("section", { class: "part" }, el("h2", {}, "Types"), ...extra.map(([name, s]) => folded(name, el("p", {}, s.description ?? ""), described(name, rows(s))))));
document.documentElement.dataset.state = "ready";
