// Prototypes: the patches that each stands for over the cohort, and its share per class.

import { get } from "./api.js";
import { count, h, percent, replace, shown } from "./dom.js";
import { patchState, patchTiles, swatch } from "./patch.js";
import { link } from "./state.js";

const WAIT = 1500;

export async function prototypePanel(host, slide, wanted, onOpen, isCurrent) {
  const found = await get(`/api/slides/${slide.number}/prototypes`);
  if (!isCurrent()) return;
  if (found.is_working) {
    replace(host, h("p", { class: "quiet" }, found.reason));
    setTimeout(() => isCurrent() && prototypePanel(host, slide, wanted, onOpen, isCurrent), WAIT);
    return;
  }
  if (!found.prototypes.length) {
    replace(host, h("p", { class: "quiet" }, found.reason || "There are no prototypes."));
    return;
  }
  const ordered = [...found.prototypes].sort((a, b) => b.here - a.here || b.patches - a.patches);
  const slides = count(found.num_slides, "test slide");
  let opened = wanted;
  const toggled = (index, isOpen) => {
    // Another one that is opened closes this one, in either order.
    if (!isCurrent() || isOpen === (opened === index)) return;
    opened = isOpen ? index : null;
    onOpen(opened);
  };
  const cards = ordered.map((one) => card(one, slide, slides, one.index === wanted, toggled));
  replace(
    host,
    h("p", { class: "quiet" }, `${count(found.prototypes.length, "prototype")} in use on the ${slides} of fold ${slide.fold}; ${found.num_unused} unused. Those of this slide come first.`),
    found.notes.map((note) => h("p", { class: "quiet" }, note)),
    cards,
  );
  cards.find((one) => one.open)?.scrollIntoView({ block: "nearest" });
}

function card(one, slide, slides, isOpen, toggled) {
  const origin = one.origin;
  return h("details", { class: "prototype", name: "prototype", open: isOpen, ontoggle: (event) => toggled(one.index, event.target.open) },
    h("summary", {}, swatch(one.colour), h("strong", {}, `Prototype ${one.index}`), h("span", { class: "quiet" }, ` ${count(one.here, "patch", "patches")} here · ${percent(one.share, 1)} of the patches of ${slides}`)),
    h("table", { class: "values" }, h("caption", {}, "Share of the patches of each class"),
      h("tbody", {}, one.class_shares.map((part) => h("tr", {}, h("th", { scope: "row" }, part.name), h("td", {}, h("meter", { min: 0, max: 1, value: part.share ?? 0, "aria-label": `Share of ${part.name}` })), h("td", {}, `${percent(part.share, 1)} (${part.patches.toLocaleString("en")})`))))),
    h("p", {}, `Attention of its patches: ${shown(one.relative_attention, 2)} of an average patch`, one.positive_share === null ? "." : `; ${percent(one.positive_share)} of its labelled patches are positive.`),
    origin ? h("p", {}, "It is a training patch: ", origin.name === null ? `${origin.slide_id}, patch ${origin.patch}` : link((now) => ({ ...now, ...patchState(origin.name, origin.patch) }), {}, h, `${origin.slide_id}, patch ${origin.patch}`), ".") : null,
    origin?.has_picture ? h("img", { class: "patch-picture", src: `/origins/${slide.number}/${one.index}.jpg`, alt: `Training patch of prototype ${one.index}`, loading: "lazy", width: 96, height: 96 }) : null,
    one.examples.length ? [h("h4", {}, `Most similar patches of ${slides}`), patchTiles(one.examples, slide)] : null);
}
