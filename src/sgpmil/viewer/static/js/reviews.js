// All verdicts: agreement with the model, and exports.

import { get } from "./api.js";
import { count, h, percent, replace } from "./dom.js";

export async function reviewsPage(main, run) {
  document.title = `Verdicts · ${run.name}`;
  const found = await get("/api/agreement");
  const rows = (parts) => parts.map((part) => h("tr", {}, h("th", { scope: "row" }, part.name), h("td", {}, part.agree), h("td", {}, part.disagree), h("td", {}, part.unsure), h("td", {}, part.share === null ? "–" : `${percent(part.share)} (${percent(part.low)} to ${percent(part.high)})`)));
  const table = (caption, parts) => h("div", { class: "table-wrap" }, h("table", { class: "values wide" }, h("caption", {}, caption), h("thead", {}, h("tr", {}, ["", "Agree", "Disagree", "Unsure", "Agreement (95 % interval)"].map((name) => (name ? h("th", { scope: "col" }, name) : h("td", {}))))), h("tbody", {}, rows(parts))));
  replace(main, h("div", { class: "page" },
    h("h1", {}, "Verdicts"),
    h("p", {}, `${count(found.num_reviewed, "slide")} of ${found.num_slides.toLocaleString("en")} have a verdict.`),
    found.num_outdated ? h("p", {}, `${count(found.num_outdated, "verdict")} on earlier predictions, which were other classes, ${found.num_outdated === 1 ? "is" : "are"} not counted below.`) : null,
    h("p", { class: "row" }, h("a", { class: "button", href: "/api/reviews.csv", download: "verdicts.csv" }, "Export as CSV"), h("a", { class: "button", href: "/api/reviews.geojson", download: "regions.geojson" }, "Export regions as GeoJSON")),
    h("p", {}, "With the versions that were replaced: ", h("a", { href: "/api/reviews.csv?history=true", download: "history.csv" }, "CSV"), " ", h("a", { href: "/api/reviews.geojson?history=true", download: "history.geojson" }, "GeoJSON")),
    table("By person", [...found.people, { name: "all", ...found.all }]),
    table("By confidence of the model", found.levels),
    h("p", { class: "quiet" }, "Agreement is the share of “agree” among “agree” and “disagree”. Slides are not chosen at random, so it is not the accuracy of the model.")));
  return {};
}
