// The worklist: slides in the order in which to look at them.

import { get } from "./api.js";
import { announce, count, debounce, decimals, h, percent, replace } from "./dom.js";
import { link, note, go } from "./state.js";

const PART = 100;
const UNCERTAINTY = "Entropy (nats)";
const SORTS = [
  ["uncertainty", "Uncertainty"],
  ["model", "Model uncertainty"],
  ["novelty", "Novelty"],
  ["error", "Error"],
  ["probability", "Probability"],
  ["name", "Name"],
];
const FILTERS = ["sort", "descending", "search", "wrong", "unsure", "novel", "label", "predicted", "set_size", "reviewed"];
export const LEVELS = { sure: "sure", leaning: "leaning", undecided: "undecided" };

export function worklistState(values) {
  return Object.fromEntries(FILTERS.filter((name) => values[name] !== undefined).map((name) => [name, values[name]]));
}

// The slide that was last looked at, and the rows that were there: the worklist comes back to them.
const place = { name: null, query: "", rows: 0 };

export function remember(name) {
  place.name = name;
}

export async function worklistPage(main, run, values) {
  document.title = `Worklist · ${run.name}`;
  const query = worklistState(values);
  const body = h("tbody");
  const status = h("p", { class: "count", role: "status" });
  const more = h("button", { type: "button", class: "more", hidden: true, onclick: () => load() }, `Show ${PART} more`);
  let rows = [];
  let total = 0;
  let turn = 0;
  let isLoading = false;
  let isLeft = false;

  async function load(restart = false) {
    if (isLoading && !restart) return;
    isLoading = true;
    const own = ++turn;
    const offset = restart ? 0 : rows.length;
    const found = await get("/api/worklist", { ...query, offset, limit: PART });
    if (own !== turn) return;
    isLoading = false;
    if (restart) {
      rows = [];
      replace(body);
    }
    total = found.num_slides;
    rows = rows.concat(found.rows);
    body.append(...found.rows.map((row) => tableRow(row, run, query)));
    more.hidden = rows.length >= total;
    status.textContent = total === run.num_slides ? count(total, "slide") : `${count(total, "slide")} of ${run.num_slides.toLocaleString("en")}`;
    if (restart) announce(status.textContent);
  }

  function change(changes) {
    if (isLeft) return;
    Object.assign(query, changes);
    for (const name of Object.keys(query)) if (query[name] === "" || query[name] === false || query[name] === null) delete query[name];
    note(Object.fromEntries(FILTERS.map((name) => [name, query[name] ?? null])));
    load(true);
  }

  const search = h("input", { type: "search", value: query.search ?? "", placeholder: "Slide or patient", maxLength: 200, "aria-label": "Search by slide or patient", oninput: debounce(() => change({ search: search.value }), 150) });
  const toggle = (name, text, number) =>
    h("label", { class: "chip" }, h("input", { type: "checkbox", checked: query[name] === "true", onchange: (event) => change({ [name]: event.target.checked ? "true" : "" }) }), h("span", {}, `${text} ${number.toLocaleString("en")}`));
  const choice = (name, text, options) =>
    h("label", { class: "field" }, h("span", {}, text), h("select", { onchange: (event) => change({ [name]: event.target.value }) }, options.map(([value, words]) => h("option", { value, selected: String(query[name] ?? "") === String(value) }, words))));
  const classes = run.classes.map((name, number) => [number, name]);

  const table = h(
    "table",
    { class: "worklist" },
    h("caption", { class: "hidden" }, "Slides of the run"),
    h("thead", {}, h("tr", {}, ["Slide", "", "Prediction", run.has_labels ? "Label" : null, UNCERTAINTY, run.has_novelty ? "Novelty" : null, "Set", "Verdicts"].filter((name) => name !== null).map((name) => (name ? h("th", { scope: "col" }, name) : h("td", {}))))),
    body,
  );
  replace(
    main,
    h("div", { class: "page" },
      h("h1", {}, "Worklist"),
      summary(run),
      h("form", { class: "filters", "aria-label": "Order and filters", onsubmit: (event) => event.preventDefault() },
        choice("sort", "First", SORTS.filter(([name]) => (name !== "novelty" || run.has_novelty) && (name !== "error" || run.has_labels) && (name !== "model" || run.has_posterior))),
        h("label", { class: "field grow" }, h("span", {}, "Search"), search),
        choice("predicted", "Predicted", [["", "any"], ...classes]),
        run.has_labels ? choice("label", "Label", [["", "any"], ...classes]) : null,
        choice("set_size", "Set size", [["", "any"], ...run.set_sizes.map((size) => [size, size === 0 ? "no set" : size])]),
        choice("reviewed", "Verdict", [["", "any"], ["true", "with"], ["false", "without"]]),
        h("fieldset", { class: "chips" }, h("legend", { class: "hidden" }, "Only"),
          run.has_labels ? toggle("wrong", "Wrong", run.num_wrong) : null,
          toggle("unsure", "Not sure", run.num_unsure),
          run.has_novelty ? toggle("novel", "Novel", run.num_novel) : null,
          h("label", { class: "chip" }, h("input", { type: "checkbox", checked: query.descending === "true", onchange: (event) => change({ descending: event.target.checked ? "true" : "" }) }), h("span", {}, "Reverse order")))),
      status, h("div", { class: "table-wrap" }, table), more),
  );
  const watcher = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting) && !more.hidden && rows.length) load();
  }, { rootMargin: "600px" });
  await load(true);
  const isBack = place.query === JSON.stringify(query);
  const lastLink = () => [...body.querySelectorAll("a.slide-link")].find((one) => one.textContent === place.name);
  // The slide may have been stepped to, beyond the rows that were there.
  while (isBack && !isLoading && place.name !== null && !lastLink() && rows.length < Math.min(total, place.rows + PART)) await load();
  const last = isBack ? lastLink() : undefined;
  watcher.observe(more);

  function step(by) {
    const links = [...body.querySelectorAll("a.slide-link")];
    const at = links.indexOf(document.activeElement?.closest("tr")?.querySelector("a.slide-link"));
    links[Math.min(Math.max(at + by, 0), links.length - 1)]?.focus();
    return true;
  }
  return {
    // Called when the page is shown.
    enter() {
      last?.focus({ preventScroll: true });
      last?.closest("tr").scrollIntoView({ block: "center" });
      return last !== undefined;
    },
    leave() {
      isLeft = true;
      watcher.disconnect();
      Object.assign(place, { query: JSON.stringify(worklistState(query)), rows: rows.length });
    },
    key(event) {
      if (event.key === "j") return step(1);
      if (event.key === "k") return step(-1);
      if (event.key === "/") return search.focus(), true;
      return false;
    },
  };
}

function summary(run) {
  const parts = [count(run.num_slides, "slide"), run.has_labels ? `${run.num_wrong.toLocaleString("en")} predicted wrong` : "no labels", `not sure of ${run.num_unsure.toLocaleString("en")}`];
  if (run.has_novelty) parts.push(`${run.num_novel.toLocaleString("en")} unlike the training slides`);
  if (run.unfinished.length) parts.push(`${count(run.unfinished.length, "fold")} not done`);
  return h("p", { class: "quiet" }, parts.join(" · "));
}

function tableRow(row, run, query) {
  const target = { view: "slide", name: row.name, ...query };
  const most = Math.log(Math.max(2, run.classes.length));
  const name = link(target, { class: "slide-link" }, h, row.name);
  const image = h("img", { src: `/thumbnails/${row.number}.jpg`, alt: "", loading: "lazy", decoding: "async", width: 64, height: 64 });
  image.addEventListener("error", () => image.remove(), { once: true });
  return h(
    "tr",
    { onclick: (event) => { if (!event.target.closest("a") && !getSelection().toString()) go(target); } },
    h("th", { scope: "row", class: "name" }, name, row.case_id && row.case_id !== row.slide_id ? h("span", { class: "sub" }, row.case_id) : null),
    h("td", { class: "thumb" }, image),
    h("td", { class: "prediction" },
      h("strong", {}, row.predicted), ` ${row.probability} `,
      h("span", { class: `level ${row.level}` }, LEVELS[row.level]),
      row.seen ? h("span", { class: "tag warn" }, "seen in training") : null,
      h("span", { class: "sub" }, row.headline)),
    run.has_labels ? h("td", { "data-head": "Label" }, row.label ?? "–", row.wrong ? h("span", { class: "tag wrong" }, "wrong") : null) : null,
    h("td", { "data-head": UNCERTAINTY }, h("meter", { min: 0, max: most, value: row.entropy ?? 0, "aria-label": "Entropy in nats" }), h("span", { class: "number" }, decimals(row.entropy))),
    run.has_novelty ? h("td", { "data-head": "Novelty" }, row.novelty_p === null ? "–" : `p ${decimals(row.novelty_p, 3)}`, row.novel ? h("span", { class: "tag warn" }, "novel") : null, h("span", { class: "sub" }, row.novel_share === null ? "" : `${percent(row.novel_share)} of patches`)) : null,
    h("td", { "data-head": "Set" }, row.set === null ? "–" : row.set.join(", ")),
    h("td", { "data-head": "Verdicts" }, row.verdicts.length ? row.verdicts.map((verdict) => h("span", { class: `tag ${verdict}` }, verdict)) : "–"),
  );
}
