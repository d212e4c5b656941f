// Pages by address, and the keys that work on all of them.

import { get } from "./api.js";
import { announce, h, replace } from "./dom.js";
import { showHelp } from "./help.js";
import { link, state } from "./state.js";
import { comparePage } from "./compare.js";
import { reviewsPage } from "./reviews.js";
import { slidePage } from "./slide.js";
import { worklistPage } from "./worklist.js";

const PAGES = { slide: slidePage, compare: comparePage, reviews: reviewsPage };
const main = document.getElementById("main");
let run = null;
let page = null;
let visit = 0;

async function open() {
  const here = ++visit;
  page?.leave?.();
  page = null;
  const values = state();
  try {
    run ??= await get("/api/run");
    if (here !== visit) return;
    header(values);
    const make = PAGES[values.view] ?? worklistPage;
    const made = await make(main, run, values);
    if (here === visit) page = made;
    else made?.leave?.();
  } catch (error) {
    if (here === visit) replace(main, h("section", { class: "message" }, h("h1", {}, "This cannot be shown"), h("p", {}, error.message), h("p", {}, link({}, {}, h, "Go to the worklist"))));
  }
}

function header(values) {
  document.getElementById("run-name").textContent = run.name;
  const pages = [["", "Worklist"], ["compare", "Compare"], ["reviews", "Verdicts"]];
  replace(
    document.getElementById("pages"),
    pages.map(([view, name]) => link(view ? { view } : {}, { "aria-current": (values.view ?? "") === view ? "page" : null }, h, name)),
  );
}

function isTyping(target) {
  return target.matches?.("input:not([type=radio]):not([type=checkbox]):not([type=range]), textarea, select") || document.getElementById("help").open;
}

addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  if (isTyping(event.target)) {
    // The first Esc leaves the field, the next one the page.
    if (event.key === "Escape" && !document.getElementById("help").open) main.focus({ preventScroll: true });
    return;
  }
  if (event.key === "?") {
    event.preventDefault();
    showHelp();
    return;
  }
  // Arrow keys belong to sliders and choices while these have the focus.
  if (event.target.matches?.("input") && event.key.startsWith("Arrow")) return;
  if (page?.key?.(event)) event.preventDefault();
});
addEventListener("popstate", () => open().then(() => page?.enter?.()));
addEventListener("sgpmil:go", () => {
  open().then(() => {
    if (!page?.enter?.()) {
      main.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
    announce(document.title);
  });
});
document.getElementById("help-button").addEventListener("click", showHelp);
open();
