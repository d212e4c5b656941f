// The page of a slide: picture with maps, prediction, patch, prototypes, verdict.

import { get } from "./api.js";
import { announce, decimals, h, percent, replace } from "./dom.js";
import { LayerPanel } from "./layers.js";
import { keyPatchList, patchPanel } from "./patch.js";
import { prototypePanel } from "./prototypes.js";
import { ReviewPanel } from "./review.js";
import { MISSING, openSeadragon, Stage } from "./stage.js";
import { go, link, note, state } from "./state.js";
import { LEVELS, remember, worklistState } from "./worklist.js";

const TABS = [["patch", "Patch"], ["prototypes", "Prototypes"], ["review", "Verdict"]];

export async function slidePage(main, run, values) {
  const { number } = await get("/api/named", { name: values.name ?? "" });
  let slide = await get(`/api/slides/${number}`, { class: values.class });
  document.title = `${slide.name} · ${run.name}`;
  const around = worklistState(values);
  remember(slide.name);
  const host = h("div", { class: "stage" });
  const bodies = Object.fromEntries(TABS.map(([name]) => [name, h("div", { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, tabIndex: 0, class: "tab-body" })]));
  const tabs = TABS.map(([name, words]) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, onclick: () => choose(name), onkeydown: arrows }, words));
  const layersHost = h("div");
  let isHere = true;
  let patch = values.patch === undefined ? null : Number(values.patch);
  let keyRank = -1;

  replace(main, h("div", { class: "slide-page" },
    h("div", { class: "stage-side" }, toolbar(), host),
    h("div", { class: "panel" }, prediction(slide, run, around), layersHost,
      h("div", { class: "tabs", role: "tablist", "aria-label": "More" }, tabs), Object.values(bodies))));

  function toolbar() {
    const tool = (words, title, action) => h("button", { type: "button", title, "aria-label": title, onclick: action }, words);
    return h("div", { class: "tools", role: "toolbar", "aria-label": "View" },
      link(around, { class: "back" }, h, "‹ Worklist"),
      h("span", { class: "tool-name" }, slide.name),
      tool("−", "Zoom out", () => stage?.zoom(1 / 1.6)), tool("+", "Zoom in", () => stage?.zoom(1.6)), tool("⤢", "Whole slide", () => stage?.home()),
      tool("‹", "Previous slide", () => step(-1)), tool("›", "Next slide", () => step(1)));
  }

  function choose(name) {
    for (const [index, [own]] of TABS.entries()) {
      const isOpen = own === name;
      tabs[index].setAttribute("aria-selected", String(isOpen));
      tabs[index].tabIndex = isOpen ? 0 : -1;
      bodies[own].hidden = !isOpen;
    }
    note({ tab: name === "patch" ? null : name, prototype: name === "prototypes" ? prototype : null });
    if (name === "prototypes") prototypePanel(bodies.prototypes, slide, prototype, openPrototype, () => isHere && !bodies.prototypes.hidden).catch(failed(bodies.prototypes));
  }

  function arrows(event) {
    const at = tabs.indexOf(event.target);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1 }[event.key];
    if (to === undefined) return;
    const next = tabs[(to + tabs.length) % tabs.length];
    next.focus();
    next.click();
    event.stopPropagation();
    event.preventDefault();
  }

  // The one that is open is in the address; null where none is.
  let prototype = values.prototype === undefined ? null : Number(values.prototype);
  function openPrototype(index) {
    prototype = index;
    note({ prototype });
  }

  function showPrototype(index) {
    prototype = index;
    choose("prototypes");
    tabs[1].focus();
  }

  async function showPatch(index, { move = true } = {}) {
    patch = index;
    try {
      const found = await patchPanel(bodies.patch, slide, run, index, showPrototype);
      if (!isHere) return;
      if (stage) move ? stage.showPatch(found) : stage.markPatch(found);
      note({ patch: index, ...(stage?.view() ?? {}) });
      choose("patch");
      announce(`Patch ${index}`);
      bodies.patch.append(h("p", {}, h("button", { type: "button", class: "as-link", onclick: clearPatch }, "Patches to look at")));
    } catch (error) {
      if (isHere) failed(bodies.patch)(error);
    }
  }

  function clearPatch() {
    patch = null;
    stage?.markPatch(null);
    note({ patch: null });
    replace(bodies.patch, keyPatchList(slide, showPatch));
  }

  async function pick(x, y) {
    if (review?.corner(x, y)) return;
    const found = await get(`/api/slides/${slide.number}/patch`, { x, y, class: slide.class_index }).catch(() => null);
    if (!isHere) return;
    if (found === null) clearPatch();
    else await showPatch(found.patch, { move: false });
  }

  async function step(by) {
    const found = await neighbours(around, slide.name);
    if (!isHere) return;
    const target = by > 0 ? found.next : found.previous;
    if (!target) return announce("There is no other slide.");
    const kept = state();
    go({ ...around, view: "slide", name: target, layer: kept.layer, opacity: kept.opacity, class: kept.class, tab: kept.tab });
  }

  // The slide itself.
  let stage = null;
  let layers = null;
  let review = null;
  const canShow = slide.frame.has_image || slide.num_patches > 0;
  if (!run.has_openseadragon) replace(host, h("p", { class: "empty" }, MISSING));
  else if (!canShow) replace(host, h("p", { class: "empty" }, slide.notes.join(" ")));
  else {
    const OSD = await openSeadragon();
    if (!host.isConnected) return { leave() {} };
    stage = new Stage(OSD, host, slide, {
      label: `Slide ${slide.name}. Arrow keys move, plus and minus zoom, c shows the patch in the middle.`,
      onPick: pick,
      onMove: (view) => isHere && note(view),
    });
    window.sgpmilStage = stage;
    await stage.ready;
    const view = { x: Number(values.x), y: Number(values.y), zoom: Number(values.zoom) };
    if (values.x !== undefined && Object.values(view).every(Number.isFinite)) stage.show(view);
    else if (!slide.frame.has_image && slide.bounds) stage.fit(slide.bounds);
    layers = new LayerPanel(layersHost, slide, run, values, [stage], changed);
  }
  review = new ReviewPanel(slide, run, stage);
  replace(bodies.review, review.element);
  review.load().catch(failed(bodies.review));
  replace(bodies.patch, keyPatchList(slide, showPatch));
  choose(bodies[values.tab] ? values.tab : "patch");
  if (patch !== null && Number.isInteger(patch)) {
    await showPatch(patch, { move: values.x === undefined });
    if (bodies[values.tab]) choose(values.tab);
  }

  async function changed({ reload, ...changes }) {
    if (!isHere) return;
    note(changes);
    if (!reload) return;
    const found = await get(`/api/slides/${number}`, { class: changes.class });
    if (!isHere) return;
    slide = found;
    stage.slide = slide;
    layers.take(slide);
    if (patch !== null) showPatch(patch, { move: false });
  }

  return {
    leave() {
      isHere = false;
      review.leave();
      layers?.leave();
      stage?.close();
      window.sgpmilStage = null;
    },
    key(event) {
      const { key } = event;
      if (key === "Escape") {
        if (review?.finish(false)) return true;
        go(around);
        return true;
      }
      if (key === "Enter" && review?.sketch) return review.finish();
      if (key === "n" || key === "p") return step(key === "n" ? 1 : -1), true;
      if (key === "r") return choose("review"), bodies.review.querySelector("input, textarea")?.focus(), true;
      if (!stage) return false;
      // Arrows scroll the panel where it has the focus.
      if (!(key.startsWith("Arrow") && event.target.closest?.(".panel")) && stage.key(key)) return true;
      if (layers.key(key)) return true;
      if (key === "c") return pick(stage.view().x, stage.view().y), true;
      if (key === "d") return choose("review"), review.sketch ? review.finish() : review.begin(), true;
      if (key === "k") {
        const all = Object.values(slide.key_patches).flat();
        if (all.length) showPatch(all[(keyRank = (keyRank + 1) % all.length)].patch);
        return true;
      }
      return false;
    },
  };
}

function failed(host) {
  return (error) => replace(host, h("p", { class: "quiet" }, error.message));
}

async function neighbours(around, name) {
  const part = 500;
  for (let offset = 0, before = null; ; offset += part) {
    const found = await get("/api/worklist", { ...around, offset, limit: part });
    const names = found.rows.map((row) => row.name);
    const at = names.indexOf(name);
    if (at >= 0) {
      let next = names[at + 1] ?? null;
      if (next === null && offset + part < found.num_slides) next = (await get("/api/worklist", { ...around, offset: offset + part, limit: 1 })).rows[0]?.name ?? null;
      return { previous: at > 0 ? names[at - 1] : before, next };
    }
    before = names.at(-1) ?? before;
    if (offset + part >= found.num_slides) return { previous: null, next: null };
  }
}

export function prediction(slide, run, around = {}) {
  return h("section", { class: "prediction-card", "aria-label": "Prediction" },
    h("h1", {}, slide.name),
    h("p", { class: "headline" }, h("span", { class: `level ${slide.level}` }, LEVELS[slide.level]), " ", slide.headline),
    h("dl", { class: "bars" }, slide.probabilities.map((one) => h("div", {}, h("dt", {}, one.name), h("dd", {}, h("meter", { min: 0, max: 1, value: one.probability ?? 0, "aria-label": `Probability of ${one.name}` }), h("span", { class: "number" }, one.text))))),
    h("p", { class: "facts" },
      slide.label === null ? "No label. " : ["Label: ", h("strong", {}, slide.label), slide.wrong ? h("span", { class: "tag wrong" }, "wrong") : h("span", { class: "tag right" }, "right")],
      slide.set === null ? null : h("span", {}, ` Set: ${slide.set.join(", ")}. `),
      slide.novelty_p === null ? null : h("span", {}, ` Novelty: p ${decimals(slide.novelty_p, 3)}, ${percent(slide.novel_share)} of patches. `, slide.novel ? h("span", { class: "tag warn" }, "novel") : null)),
    slide.notes.map((text) => h("p", { class: "notice" }, text)),
    h("details", {}, h("summary", {}, "Why, and how sure"), slide.reasons.map((text) => h("p", {}, text)), h("p", {}, slide.doubt), h("p", {}, slide.set_sentence),
      h("p", { class: "quiet" }, `Fold ${slide.fold} of ${slide.run}; patient ${slide.case_id}; ${slide.num_patches.toLocaleString("en")} patches.`)),
    slide.counterparts.length ? h("p", {}, slide.counterparts.map((one) => link({ view: "compare", name: slide.name, with: one.title, ...around }, { class: "button" }, h, `Compare with ${one.title}`))) : null);
}
