// Choice of the map over a slide: layer, class, opacity, threshold, annotations, legend.

import { get } from "./api.js";
import { count, debounce, h, replace, shown } from "./dom.js";
import { swatch } from "./patch.js";

const NONE = "none";
const PROTOTYPE = "prototype";
const STEPS = 200;
const WAIT = 1500;

export function defaultLayer(slide) {
  const kinds = slide.layers.map((layer) => layer.kind);
  return ["evidence", "single", "attention"].find((kind) => kinds.includes(kind)) ?? NONE;
}

// `stages` are shown alike. `onChange` receives the changed state. `sides` hold the legend and the
// count of each stage; without them the panel does.
export class LayerPanel {
  constructor(host, slide, run, values, stages, onChange, sides = null) {
    this.sides = sides;
    this.run = run;
    this.stages = stages;
    this.onChange = onChange;
    this.layer = values.layer ?? defaultLayer(slide);
    this.opacity = clamp(Number(values.opacity ?? 0.6), 0, 1, 0.6);
    this.least = values.least === undefined ? null : Number(values.least);
    if (!Number.isFinite(this.least)) this.least = null;
    this.showsOutlines = values.outlines !== "no";
    this.outlineOpacity = clamp(Number(values.outline_opacity ?? 1), 0, 1, 1);
    this.turn = 0;
    this.isLeft = false;
    this.element = h("section", { class: "layers", "aria-label": "Layers" });
    host.replaceChildren(this.element);
    this.take(slide);
  }

  take(slide) {
    this.slide = slide;
    if (this.layer !== NONE && !slide.layers.some((layer) => layer.kind === this.layer)) this.layer = defaultLayer(slide);
    this.build();
    this.apply();
  }

  get kinds() {
    return [NONE, ...this.slide.layers.map((layer) => layer.kind)];
  }

  get chosen() {
    return this.slide.layers.find((layer) => layer.kind === this.layer) ?? null;
  }

  layerOf(stage) {
    return stage.slide.layers.find((layer) => layer.kind === this.layer) ?? null;
  }

  get hasScores() {
    return this.chosen !== null && this.chosen.kind !== PROTOTYPE;
  }

  build() {
    const names = [["Slide alone", NONE], ...this.slide.layers.map((layer) => [layer.title, layer.kind])];
    const radios = names.map(([title, kind], number) =>
      h("label", { class: "choice" },
        h("input", { type: "radio", name: "layer", value: kind, checked: kind === this.layer, onchange: () => this.choose(kind) }),
        h("span", {}, title), h("kbd", { "aria-hidden": "true" }, number < 9 ? String(number + 1) : "")));
    this.opacityInput = h("input", { type: "range", min: 0, max: 1, step: 0.05, value: this.opacity, oninput: () => this.setOpacity(Number(this.opacityInput.value)) });
    this.thresholdInput = h("input", { type: "range", min: 0, max: STEPS, step: 1, oninput: () => this.setStep(Number(this.thresholdInput.value)) });
    this.counts = this.stages.map((stage) => h("output", { class: "selection", "aria-label": this.sides && `Patches counted by ${stage.slide.title}` }));
    this.legends = this.stages.map(() => h("div", { class: "legend" }));
    this.sides?.forEach((side, number) => replace(side, this.counts[number], this.legends[number]));
    const classes = h("select", { onchange: (event) => this.chooseClass(event.target.value) }, this.run.classes.map((name, c) => h("option", { value: c, selected: c === this.slide.class_index }, name)));
    const outlines = h("input", { type: "checkbox", checked: this.showsOutlines, onchange: () => this.toggleOutlines() });
    this.outlinesInput = outlines;
    const outlineOpacity = h("input", { type: "range", min: 0, max: 1, step: 0.05, value: this.outlineOpacity, oninput: () => this.setOutlineOpacity(Number(outlineOpacity.value)) });
    replace(
      this.element,
      h("h2", {}, "Layers"),
      h("fieldset", { class: "choices" }, h("legend", { class: "hidden" }, "Map over the slide"), radios),
      this.slide.layers.some((layer) => layer.of_class) ? h("label", { class: "field line" }, h("span", {}, "Class of evidence"), classes) : null,
      h("label", { class: "field line" }, h("span", {}, "Opacity"), this.opacityInput),
      h("label", { class: "field line" }, h("span", {}, "Threshold"), this.thresholdInput),
      this.sides ? null : [this.counts, this.legends],
      this.slide.annotations ? [
        h("label", { class: "choice" }, outlines, h("span", {}, `Annotations: ${this.slide.annotations.name}`), h("kbd", { "aria-hidden": "true" }, "a")),
        h("label", { class: "field line" }, h("span", {}, "Opacity of lines"), outlineOpacity),
      ] : null,
    );
  }

  async apply() {
    const layer = this.layer;
    this.opacityInput.disabled = layer === NONE;
    this.thresholdInput.disabled = !this.hasScores;
    this.thresholdInput.value = this.step;
    this.count();
    this.drawOutlines();
    if (layer === PROTOTYPE) await this.findPrototypes();
    if (this.isLeft || layer !== this.layer) return;
    for (const [side, stage] of this.stages.entries()) {
      const isThere = this.layerOf(stage) && (layer !== PROTOTYPE || stage.prototypes.prototypes.length);
      stage.setOpacity(this.opacity);
      stage.setMap(isThere ? layer : null, stage.slide.class_index, this.hasScores ? this.least : null);
      replace(this.legends[side], this.legendOf(stage));
    }
  }

  // Prototypes are found in the background: wait for them.
  async findPrototypes() {
    for (const [side, stage] of this.stages.entries()) {
      while (this.layerOf(stage)) {
        stage.prototypes = await get(`/api/slides/${stage.slide.number}/prototypes`);
        if (this.isLeft || this.layer !== PROTOTYPE) return;
        if (!stage.prototypes.is_working) break;
        for (const one of this.stages) one.setMap(null);
        replace(this.legends[side], quiet(stage.prototypes.reason));
        await new Promise((resolve) => setTimeout(resolve, WAIT));
      }
    }
  }

  get step() {
    const { least, most } = this.chosen ?? {};
    if (this.least === null || !this.hasScores || !(most > least)) return 0;
    return clamp(Math.round((STEPS * (this.least - least)) / (most - least)), 0, STEPS, 0);
  }

  choose(kind) {
    if (kind === undefined) return;
    this.layer = kind;
    this.least = null;
    const radio = this.element.querySelector(`input[value="${kind}"]`);
    if (radio) radio.checked = true;
    this.apply();
    this.onChange({ layer: kind, least: null });
  }

  // A threshold is one of the scores that it was chosen among.
  chooseClass(number) {
    if (this.chosen?.of_class) this.least = null;
    this.onChange({ class: number, least: this.least, reload: true });
  }

  setOpacity(value) {
    this.opacity = clamp(value, 0, 1, 0.6);
    this.opacityInput.value = this.opacity;
    for (const stage of this.stages) stage.setOpacity(this.opacity);
    this.onChange({ opacity: Number(this.opacity.toFixed(2)) });
  }

  setStep(step) {
    if (!this.hasScores) return;
    const { least, most } = this.chosen;
    const chosen = clamp(step, 0, STEPS, 0);
    this.least = chosen === 0 ? null : roundedDown(least + ((most - least) * chosen) / STEPS, (most - least) / STEPS);
    this.thresholdInput.value = chosen;
    this.count();
    this.redraw();
  }

  // The page is left: what is pending would change the next one.
  leave() {
    this.isLeft = true;
  }

  redraw = debounce(() => {
    if (this.isLeft || !this.hasScores) return;
    this.stages.forEach((stage, side) => {
      if (this.layerOf(stage)) stage.setMap(this.layer, stage.slide.class_index, this.least);
      replace(this.legends[side], this.legendOf(stage));
    });
    this.onChange({ least: this.least });
  }, 120);

  drawOutlines() {
    for (const stage of this.stages) stage.setOutlines(this.showsOutlines ? (stage.slide.annotations?.rings ?? []) : [], this.outlineOpacity);
  }

  setOutlineOpacity(value) {
    this.outlineOpacity = value;
    this.drawOutlines();
    this.onChange({ outline_opacity: value === 1 ? null : value });
  }

  toggleOutlines() {
    this.showsOutlines = !this.showsOutlines;
    if (this.outlinesInput) this.outlinesInput.checked = this.showsOutlines;
    this.drawOutlines();
    this.onChange({ outlines: this.showsOutlines ? null : "no" });
  }

  // Count the patches that reach the threshold.
  count() {
    const own = ++this.turn;
    this.stages.forEach((stage, side) => this.countOn(stage, this.counts[side], own));
  }

  async countOn(stage, host, own) {
    const layer = this.hasScores ? this.layerOf(stage) : null;
    const least = this.least ?? layer?.least ?? null;
    if (layer === null || least === null) {
      host.textContent = "";
      return;
    }
    const query = { layer: layer.kind, class: stage.slide.class_index, least: this.least ?? -1e300 };
    try {
      const found = await get(`/api/slides/${stage.slide.number}/selection`, query);
      if (own !== this.turn) return;
      const area = found.area_mm2 === null ? "" : ` · ${found.is_exact ? "" : "about "}${shown(found.area_mm2)} mm²`;
      const patches = `${found.patches.toLocaleString("en")} of ${count(found.known, "patch", "patches")}`;
      host.textContent = this.least === null ? `All: ${patches}${area}` : `≥ ${String(least).replace("-", "−")}: ${patches}${area}`;
    } catch (error) {
      if (own === this.turn) host.textContent = error.message;
    }
  }

  legendOf(stage) {
    const layer = this.layerOf(stage);
    if (layer === null) return this.layer === NONE ? [] : quiet("This model does not give the layer.");
    return layer.kind === PROTOTYPE ? prototypeLegend(stage.prototypes) : legend(layer, this.least !== null);
  }

  // Choose by a key; say whether it was one.
  key(key) {
    if (/^[1-9]$/.test(key)) this.choose(this.kinds[Number(key) - 1]);
    else if (key === "[" || key === "]") this.setOpacity(this.opacity + (key === "]" ? 0.1 : -0.1));
    else if (key === "," || key === ".") this.setStep(this.step + (key === "." ? 5 : -5));
    else if (key === "a") this.toggleOutlines();
    else return false;
    return true;
  }
}

const quiet = (words) => h("p", { class: "quiet" }, words);

// The prototypes of most of the slide's patches.
function prototypeLegend({ prototypes, reason, other_colour: grey }) {
  if (!prototypes.length) return quiet(reason);
  const here = prototypes.filter((one) => one.here).sort((a, b) => b.here - a.here);
  const others = here.filter((one) => one.colour === grey);
  const patches = (all) => count(all.reduce((sum, one) => sum + one.here, 0), "patch", "patches");
  return [
    h("ul", { class: "swatches", "aria-label": "Prototypes of this slide" },
      here.filter((one) => one.colour !== grey).map((one) => h("li", {}, swatch(one.colour), `${one.index}: ${patches([one])}`)),
      others.length ? h("li", {}, swatch(grey), `${others.length} others: ${patches(others)}`) : null),
    quiet("The colours are this slide's: a prototype may have another on the next one."),
  ];
}

function legend(layer, isChoice) {
  const scale = h("span", { class: "scale", role: "img", "aria-label": `Colours from ${shown(layer.low)} to ${shown(layer.high)}` });
  scale.style.background = `linear-gradient(to right, ${layer.colours.join(", ")})`;
  const below = layer.least !== null && layer.least < layer.low && layer.low !== 1;
  const above = layer.most !== null && layer.most > layer.high;
  const middle = (layer.low + layer.high) / 2;
  return h("figure", { class: "scale-figure" }, scale,
    h("div", { class: "ticks" }, h("span", {}, `${below ? "≤ " : ""}${shown(layer.low)}`), h("span", {}, shown(middle)), h("span", {}, `${above ? "≥ " : ""}${shown(layer.high)}`)),
    h("figcaption", {}, layer.unit, h("span", { class: "sub" }, isChoice ? "Below the threshold is the slide alone." : `The slide shows through ${layer.low < 0 ? "values near 0" : "low values"}, as where no patch was scored: click for the values.`)));
}

// A number of few digits that is what the page says it is, and never above the largest score.
function roundedDown(value, step) {
  const digits = clamp(1 - Math.floor(Math.log10(step)), 0, 100, 0);
  const unit = 10 ** digits;
  return Number((Math.floor(value * unit) / unit).toFixed(digits));
}

function clamp(value, low, high, otherwise) {
  return Number.isFinite(value) ? Math.min(high, Math.max(low, value)) : otherwise;
}
