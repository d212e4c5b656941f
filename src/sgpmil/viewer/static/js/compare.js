// Two models on one slide, side by side; and the slides on which they differ most.

import { get } from "./api.js";
import { count, h, percent, replace } from "./dom.js";
import { LayerPanel, legend } from "./layers.js";
import { MISSING, openSeadragon, Stage } from "./stage.js";
import { go, link, note } from "./state.js";

export async function comparePage(main, run, values) {
  return values.name === undefined ? differences(main, run, values) : sideBySide(main, run, values);
}

async function differences(main, run, values) {
  document.title = `Compare · ${run.name}`;
  const chosen = Number(values.other ?? run.comparisons[0]?.id ?? 0);
  if (!run.comparisons.length) {
    replace(main, h("div", { class: "page" }, h("h1", {}, "Compare"), h("p", {}, "There is nothing to compare with: start the viewer with --beside and another run.")));
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
        h("th", { scope: "row" }, link({ view: "compare", name: one.name, with: other.number }, {}, h, one.name)),
        h("td", {}, `${one.predicted} ${one.probability}`), h("td", {}, `${other.predicted} ${other.probability}`), h("td", {}, one.label ?? "–"), h("td", {}, percent(difference)))))))));
  return {};
}

// A slide by two models, both with the layers of the same class, which may have another number in the other run.
async function pair([one, other], chosen) {
  const first = await get(`/api/slides/${one}`, { class: chosen });
  const wanted = first.probabilities[first.class_index].name;
  const second = await get(`/api/slides/${other}`);
  const index = second.probabilities.findIndex(({ name }) => name === wanted);
  if (index === second.class_index) return [first, second];
  if (index >= 0) return [first, await get(`/api/slides/${other}`, { class: index })];
  return [first, { ...second, layers: second.layers.filter((layer) => !layer.of_class) }];
}

async function sideBySide(main, run, values) {
  const { number } = await get("/api/named", { name: values.name });
  const numbers = [number, Number(values.with)];
  let slides = await pair(numbers, values.class);
  document.title = `Compare ${slides[0].name} · ${run.name}`;
  const hosts = slides.map(() => h("div", { class: "stage" }));
  const legends = slides.map(() => h("div", { class: "legend" }));
  const layersHost = h("div", { class: "compare-layers" });
  replace(main, h("div", { class: "compare-page" },
    h("div", { class: "tools" }, link({ view: "compare" }, { class: "back" }, h, "‹ Compare"), h("h1", {}, slides[0].name), link({ view: "slide", name: slides[0].name }, {}, h, "Open the slide")),
    h("div", { class: "pair" }, slides.map((slide, side) => h("section", { class: "half", "aria-label": `${slide.run}, fold ${slide.fold}` },
      h("h2", {}, `${slide.run}, fold ${slide.fold}`),
      h("p", {}, h("strong", {}, slide.predicted), ` ${slide.probability} `, h("span", { class: `level ${slide.level}` }, slide.level), slide.label === null ? null : ` label ${slide.label}`),
      hosts[side], legends[side]))),
    layersHost));
  if (!run.has_openseadragon) {
    for (const host of hosts) replace(host, h("p", { class: "empty" }, MISSING));
    return {};
  }
  const OSD = await openSeadragon();
  const stages = slides.map((slide, side) => new Stage(OSD, hosts[side], slide, { label: `Slide ${slide.name} by ${slide.run}`, navigator: side === 1, onMove: side === 0 ? (view) => note(view) : null }));
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
  const layers = new LayerPanel(layersHost, slides[0], run, values, stages, async ({ reload, ...changes }) => {
    note(changes);
    if (reload) {
      slides = await pair(numbers, changes.class);
      stages.forEach((stage, side) => (stage.slide = slides[side]));
      layers.take(slides[0]);
    }
    drawLegends();
  });
  function drawLegends() {
    legends.forEach((host, side) => {
      const layer = slides[side].layers.find((one) => one.kind === layers.layer);
      replace(host, layer?.colours ? legend(layer) : h("p", { class: "quiet" }, layers.layer === "none" || layer ? "" : "This model does not give the layer."));
    });
  }
  drawLegends();
  window.sgpmilStages = stages;
  return {
    leave: () => stages.forEach((stage) => stage.close()),
    key(event) {
      const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      if (moves[event.key]) return stages[0].move(...moves[event.key]), true;
      if (event.key === "+" || event.key === "=") return stages[0].zoom(1.6), true;
      if (event.key === "-") return stages[0].zoom(1 / 1.6), true;
      if (event.key === "0") return stages[0].home(), true;
      if (/^[1-9]$/.test(event.key)) return layers.choose(layers.kinds[Number(event.key) - 1]), drawLegends(), true;
      if (event.key === "Escape") return go({ view: "compare" }), true;
      return false;
    },
  };
}
