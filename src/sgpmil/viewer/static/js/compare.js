// Two models on one slide, side by side; and the slides on which they differ most.

import { get } from "./api.js";
import { count, h, percent, replace } from "./dom.js";
import { LayerPanel } from "./layers.js";
import { MISSING, openSeadragon, Stage } from "./stage.js";
import { go, link, note } from "./state.js";

export async function comparePage(main, run, values) {
  return values.name === undefined ? differences(main, run, values) : sideBySide(main, run, values);
}

async function differences(main, run, values) {
  document.title = `Compare · ${run.name}`;
  const chosen = Number(values.other ?? run.comparisons[0]?.id ?? 0);
  if (!run.comparisons.length) {
    const why = run.folds.length > 1 ? "Each slide was tested by one fold only, so there are no two predictions of a slide to compare." : "The run has one prediction of each slide, so there is nothing to compare it with.";
    replace(main, h("div", { class: "page" }, h("h1", {}, "Compare"), h("p", {}, `${why} Start the viewer with another run beside this one: `, h("code", {}, "sgpmil view RUN --beside OTHER"), ".")));
    return {};
  }
  const found = await get("/api/compare", { other: chosen });
  const name = run.comparisons.find((one) => one.id === chosen)?.name ?? "";
  replace(main, h("div", { class: "page" },
    h("h1", {}, "Compare"),
    h("label", { class: "field line" }, h("span", {}, `${run.name} with`), h("select", { onchange: (event) => go({ view: "compare", other: event.target.value }) }, run.comparisons.map((one) => h("option", { value: one.id, selected: one.id === chosen }, one.name)))),
    h("p", {}, `Both predicted ${count(found.num_slides, "slide")}: the same class of ${percent(found.num_slides ? found.num_same / found.num_slides : null)}; their probabilities differ by ${percent(found.mean_difference)} on average.`),
    h("h2", {}, "Where they differ most"),
    h("div", { class: "table-wrap" }, h("table", { class: "values wide" }, h("caption", { class: "hidden" }, "Slides on which the two differ most"),
      h("thead", {}, h("tr", {}, ["Slide", run.name, name, "Label", "Difference"].map((words) => h("th", { scope: "col" }, words)))),
      h("tbody", {}, found.slides.map(({ one, other, difference }) => h("tr", {},
        h("th", { scope: "row" }, link({ view: "compare", name: one.name, with: other.title }, {}, h, one.name)),
        h("td", {}, `${one.predicted} ${one.probability}`), h("td", {}, `${other.predicted} ${other.probability}`), h("td", {}, one.label ?? "–"), h("td", {}, percent(difference)))))))));
  return {};
}

// The slide by the other model, with layers of the same class, which may have another number there.
async function counterpart(first, number) {
  const wanted = first.probabilities[first.class_index].name;
  const second = await get(`/api/slides/${number}`);
  const index = second.probabilities.findIndex(({ name }) => name === wanted);
  if (index === second.class_index) return second;
  if (index >= 0) return get(`/api/slides/${number}`, { class: index });
  return { ...second, layers: second.layers.filter((layer) => !layer.of_class) };
}

async function sideBySide(main, run, values) {
  const { number } = await get("/api/named", { name: values.name });
  const first = await get(`/api/slides/${number}`, { class: values.class });
  const other = first.counterparts.find((one) => one.title === values.with);
  if (!other) throw new Error(`There is no prediction of ${values.name} by ${values.with ?? "another model"}.`);
  const slides = [first, await counterpart(first, other.number)];
  document.title = `Compare ${slides[0].name} · ${run.name}`;
  const hosts = slides.map(() => h("div", { class: "stage" }));
  const sides = slides.map(() => h("div"));
  const layersHost = h("div");
  const list = { view: "compare", other: other.run };
  replace(main, h("div", { class: "slide-page compare-page" },
    h("div", { class: "stage-side" },
      h("div", { class: "tools" }, link(list, { class: "back" }, h, "‹ Compare"), h("h1", {}, slides[0].name), link({ view: "slide", name: slides[0].name }, {}, h, "Open the slide")),
      h("div", { class: "pair" }, slides.map((slide, side) => h("section", { class: "half", "aria-label": slide.title },
        h("header", {}, h("h2", {}, slide.title),
          h("p", {}, h("strong", {}, slide.predicted), ` ${slide.probability} `, h("span", { class: `level ${slide.level}` }, slide.level), slide.label === null ? null : ` label ${slide.label}`)),
        hosts[side])))),
    h("div", { class: "panel" }, layersHost,
      slides.map((slide, side) => h("section", { class: "side", "aria-label": `Legend of ${slide.title}` }, h("h3", {}, slide.title), sides[side])))));
  if (!run.has_openseadragon) {
    for (const host of hosts) replace(host, h("p", { class: "empty" }, MISSING));
    return {};
  }
  const OSD = await openSeadragon();
  let isHere = true;
  const stages = slides.map((slide, side) => new Stage(OSD, hosts[side], slide, { label: `Slide ${slide.name} by ${slide.run}`, navigator: side === 1, onMove: side === 0 ? (view) => isHere && note(view) : null }));
  await Promise.all(stages.map((stage) => stage.ready));
  const view = { x: Number(values.x), y: Number(values.y), zoom: Number(values.zoom) };
  if (values.x !== undefined && Object.values(view).every(Number.isFinite)) for (const stage of stages) stage.show(view);
  else if (!slides[0].frame.has_image && slides[0].bounds) for (const stage of stages) stage.fit(slides[0].bounds);
  let isFollowing = false;
  const follow = (leader, follower) => {
    for (const name of ["zoom", "pan"]) {
      leader.viewer.addHandler(name, (event) => {
        if (isFollowing) return;
        isFollowing = true;
        // Without the point that stays where it is: the centre, which follows, tells the place.
        if (name === "zoom") follower.viewer.viewport.zoomTo(leader.viewer.viewport.getZoom(), null, event.immediately);
        follower.viewer.viewport.panTo(leader.viewer.viewport.getCenter(), event.immediately);
        isFollowing = false;
      });
    }
  };
  follow(stages[0], stages[1]);
  follow(stages[1], stages[0]);
  const changed = async ({ reload, ...changes }) => {
    if (!isHere) return;
    note(changes);
    if (!reload) return;
    const own = await get(`/api/slides/${number}`, { class: changes.class });
    const found = [own, await counterpart(own, other.number)];
    if (!isHere) return;
    stages.forEach((stage, side) => (stage.slide = found[side]));
    layers.take(own);
  };
  const layers = new LayerPanel(layersHost, first, run, values, stages, changed, sides);
  window.sgpmilStages = stages;
  return {
    leave() {
      isHere = false;
      layers.leave();
      for (const stage of stages) stage.close();
    },
    key(event) {
      if (event.key === "Escape") return go(list), true;
      return stages[0].key(event.key) || layers.key(event.key);
    },
  };
}
