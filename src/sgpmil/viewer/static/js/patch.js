// One patch: its scores with intervals, its prototype, and the patches that resemble it.

import { get } from "./api.js";
import { h, percent, replace, shown } from "./dom.js";
import { link, state } from "./state.js";

export const KINDS = {
  attention: "Highest attention",
  evidence: "Most evidence for the predicted class",
  single: "Most telling alone",
  unsure: "High attention, uncertain",
};

export function keyPatchList(slide, onPatch) {
  const kinds = Object.entries(slide.key_patches).filter(([, patches]) => patches.length);
  if (!kinds.length) return h("p", { class: "quiet" }, "There are no scores of patches.");
  return h("div", {}, kinds.map(([kind, patches]) => [
    h("h3", {}, KINDS[kind] ?? kind),
    h("ul", { class: "tiles" }, patches.slice(0, 6).map((one, rank) =>
      h("li", {}, h("button", { type: "button", class: "tile", onclick: () => onPatch(one.patch) },
        picture(slide, slide.number, one.patch), h("span", {}, `${rank + 1}`), h("span", { class: "hidden" }, `. patch ${one.patch}, ${KINDS[kind] ?? kind}`))))),
  ]));
}

export async function patchPanel(host, slide, run, patch, onPrototype) {
  const found = await get(`/api/slides/${slide.number}/patch`, { patch, class: slide.class_index });
  const similar = h("div", { class: "similar" }, h("p", { class: "quiet" }, "Looking for similar patches…"));
  replace(
    host,
    h("h3", {}, `Patch ${found.patch}`),
    h("div", { class: "patch-head" },
      found.has_picture ? h("img", { class: "patch-picture", src: `/patches/${slide.number}/${found.patch}.jpg`, alt: `Patch ${found.patch}`, width: 150, height: 150 }) : null,
      h("div", {},
        slide.is_placed ? h("p", { class: "quiet" }, `At ${found.x.toLocaleString("en")}, ${found.y.toLocaleString("en")} px; ${sideText(slide, found)}`) : null,
        found.label !== null ? h("p", {}, "Annotated: ", h("strong", {}, found.label > 0 ? "positive" : "negative")) : null,
        found.single_probability !== null ? h("p", {}, `Alone it would be ${found.class} with ${percent(found.single_probability)}.`) : null,
        found.prototype ? h("p", {}, "Most like ", h("button", { type: "button", class: "as-link", onclick: () => onPrototype(found.prototype.index) }, swatch(found.prototype.colour), `prototype ${found.prototype.index}`), ` (similarity ${shown(found.prototype.similarity, 2)})`) : null)),
    h("div", { class: "table-wrap" }, h("table", { class: "values" },
      h("caption", { class: "hidden" }, "Scores of the patch"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Score"), h("th", { scope: "col" }, "Value"), h("th", { scope: "col" }, "95 % interval"))),
      h("tbody", {}, found.values.map((value) => h("tr", {}, h("th", { scope: "row" }, value.title, h("span", { class: "sub" }, value.unit)), h("td", {}, shown(value.value)), h("td", {}, value.low === null ? "–" : `${shown(value.low)} to ${shown(value.high)}`)))))),
    similar,
  );
  fillSimilar(similar, slide, found.patch);
  return found;
}

async function fillSimilar(host, slide, patch) {
  try {
    const found = await get(`/api/slides/${slide.number}/similar`, { patch });
    const tiles = (patches) => (patches.length ? patchTiles(patches, slide) : h("p", { class: "quiet" }, "There are none."));
    const lists = [
      h("h3", {}, "Most similar in this slide"), tiles(found.here),
      h("h3", {}, "Most similar in other slides"), tiles(found.elsewhere),
    ];
    replace(host, found.here.length || found.elsewhere.length ? lists : [], h("p", { class: "quiet" }, found.note));
  } catch (error) {
    replace(host, h("p", { class: "quiet" }, error.message));
  }
}

export function patchTiles(patches, slide) {
  return h("ul", { class: "tiles" }, patches.map((one) => h("li", {}, patchLink(one, slide))));
}

// The state that shows a patch, with the layers of now. Another slide may have other prototypes.
export function patchState(name, patch) {
  const kept = state().name === name ? {} : { prototype: null };
  return { view: "slide", name, patch, x: null, y: null, zoom: null, ...kept };
}

export function patchLink(one, slide) {
  const target = (now) => ({ ...now, ...patchState(one.name, one.patch) });
  const words = one.name === slide.name ? `patch ${one.patch}` : one.name;
  return link(target, { class: "tile", title: `${one.name}, patch ${one.patch}` }, h,
    one.has_picture ? picture(slide, one.number, one.patch) : h("span", { class: "no-picture", "aria-hidden": "true" }, "▦"),
    h("span", { class: "tile-name" }, words), h("span", { class: "quiet" }, shown(one.similarity, 2)));
}

function picture(slide, number, patch) {
  if (!slide.frame.has_image) return h("span", { class: "no-picture", "aria-hidden": "true" }, "▦");
  return h("img", { src: `/patches/${number}/${patch}.jpg`, alt: "", loading: "lazy", width: 72, height: 72 });
}

function sideText(slide, found) {
  return slide.frame.mpp === null ? `${found.side} px wide` : `${shown(found.side * slide.frame.mpp)} µm wide`;
}

export function swatch(colour) {
  const element = h("span", { class: "swatch", "aria-hidden": "true" });
  element.style.background = colour;
  return element;
}
