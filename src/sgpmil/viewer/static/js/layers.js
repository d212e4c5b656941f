// Choice of the map over a slide: layer, class, opacity, threshold, annotations, legend.

import { get } from "./api.js";
import { count, debounce, h, replace, shown } from "./dom.js";

const NONE = "none";
const STEPS = 200;
const WAIT = 1500;

export function defaultLayer(slide) {
  const kinds = slide.layers.map((layer) => layer.kind);
  return ["evidence", "single", "attention"].find((kind) => kinds.includes(kind)) ?? NONE;
}

// `stages` are shown alike. `onChange` receives the changed state.
export class LayerPanel {
  constructor(host, slide, run, values, stages, onChange) {
    this.run = run;
    this.stages = stages;
    this.onChange = onChange;
    this.layer = values.layer ?? defaultLayer(slide);
    this.opacity = clamp(Number(values.opacity ?? 0.6), 0, 1, 0.6);
    this.least = values.least === undefined ? null : Number(values.least);
    if (!Number.isFinite(this.least)) this.least = null;
    this.showsOutlines = values.outlines !== "no";
    this.turn = 0;
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

  get hasScores() {
    return this.chosen !== null && this.chosen.kind !== "prototype";
  }

  build() {
    const names = [["Slide alone", NONE], ...this.slide.layers.map((layer) => [layer.title, layer.kind])];
    const radios = names.map(([title, kind], number) =>
      h("label", { class: "choice" },
        h("input", { type: "radio", name: "layer", value: kind, checked: kind === this.layer, onchange: () => this.choose(kind) }),
        h("span", {}, title), h("kbd", { "aria-hidden": "true" }, number < 9 ? String(number + 1) : "")));
    this.opacityInput = h("input", { type: "range", min: 0, max: 1, step: 0.05, value: this.opacity, oninput: () => this.setOpacity(Number(this.opacityInput.value)) });
    this.thresholdInput = h("input", { type: "range", min: 0, max: STEPS, step: 1, oninput: () => this.setStep(Number(this.thresholdInput.value)) });
    this.thresholdText = h("output", { class: "selection" });
    this.legend = h("div", { class: "legend" });
    this.controls = h("div", { class: "controls" });
    const classes = h("select", { onchange: (event) => this.onChange({ class: event.target.value, reload: true }) }, this.run.classes.map((name, c) => h("option", { value: c, selected: c === this.slide.class_index }, name)));
    const outlines = h("input", { type: "checkbox", checked: this.showsOutlines, onchange: () => this.toggleOutlines() });
    this.outlinesInput = outlines;
    replace(
      this.element,
      h("h2", {}, "Layers"),
      h("fieldset", { class: "choices" }, h("legend", { class: "hidden" }, "Map over the slide"), radios),
      this.slide.layers.some((layer) => layer.of_class) ? h("label", { class: "field line" }, h("span", {}, "Class of evidence"), classes) : null,
      h("label", { class: "field line" }, h("span", {}, "Opacity"), this.opacityInput),
      h("label", { class: "field line" }, h("span", {}, "Threshold"), this.thresholdInput),
      this.thresholdText,
      this.slide.annotations ? h("label", { class: "choice" }, outlines, h("span", {}, `Annotations: ${this.slide.annotations.name}`), h("kbd", { "aria-hidden": "true" }, "a")) : null,
      this.legend,
    );
  }

  async apply() {
    const layer = this.layer === NONE ? null : this.layer;
    if (layer === "prototype" && !(await this.prototypesAreReady())) return;
    const least = this.hasScores ? this.least : null;
    for (const stage of this.stages) {
      stage.setOpacity(this.opacity);
      stage.setMap(stage.slide.layers.some((one) => one.kind === layer) ? layer : null, stage.slide.class_index, least);
      stage.setOutlines(this.showsOutlines ? (stage.slide.annotations?.rings ?? []) : []);
    }
    this.opacityInput.disabled = layer === null;
    this.thresholdInput.disabled = !this.hasScores;
    this.thresholdInput.value = this.step;
    this.count();
    this.drawLegend();
  }

  // Prototypes are found in the background: wait for them, or say why there are none.
  async prototypesAreReady() {
    for (const stage of this.stages) {
      for (;;) {
        const found = await get(`/api/slides/${stage.slide.number}/prototypes`);
        if (this.layer !== "prototype" || !this.element.isConnected) return false;
        if (found.prototypes.length) break;
        replace(this.legend, h("p", { class: "quiet" }, found.reason));
        for (const one of this.stages) one.setMap(null);
        if (!found.is_working) return false;
        await new Promise((resolve) => setTimeout(resolve, WAIT));
      }
    }
    return true;
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

  redraw = debounce(() => {
    const layer = this.layer === NONE ? null : this.layer;
    for (const stage of this.stages) if (stage.slide.layers.some((one) => one.kind === layer)) stage.setMap(layer, stage.slide.class_index, this.least);
    this.onChange({ least: this.least });
  }, 120);

  toggleOutlines() {
    this.showsOutlines = !this.showsOutlines;
    if (this.outlinesInput) this.outlinesInput.checked = this.showsOutlines;
    for (const stage of this.stages) stage.setOutlines(this.showsOutlines ? (stage.slide.annotations?.rings ?? []) : []);
    this.onChange({ outlines: this.showsOutlines ? null : "no" });
  }

  // Count the patches that reach the threshold.
  async count() {
    const own = ++this.turn;
    if (!this.hasScores) {
      this.thresholdText.textContent = "";
      return;
    }
    const least = this.least ?? this.chosen.least;
    if (least === null) return;
    const query = { layer: this.layer, class: this.slide.class_index, least: this.least ?? -1e300 };
    try {
      const found = await get(`/api/slides/${this.slide.number}/selection`, query);
      if (own !== this.turn) return;
      const area = found.area_mm2 === null ? "" : ` · ${found.is_exact ? "" : "about "}${shown(found.area_mm2)} mm²`;
      const patches = `${found.patches.toLocaleString("en")} of ${count(found.known, "patch", "patches")}`;
      this.thresholdText.textContent = this.least === null ? `All: ${patches}${area}` : `≥ ${String(least).replace("-", "−")}: ${patches}${area}`;
    } catch (error) {
      if (own === this.turn) this.thresholdText.textContent = error.message;
    }
  }

  drawLegend() {
    const layer = this.chosen;
    if (layer === null) return replace(this.legend);
    if (layer.kind === "prototype") return replace(this.legend, h("p", { class: "quiet" }, "Each patch has the colour of the prototype that it is most like: see Prototypes."));
    replace(this.legend, legend(layer));
  }
}

export function legend(layer) {
  const scale = h("span", { class: "scale", role: "img", "aria-label": `Colours from ${shown(layer.low)} to ${shown(layer.high)}` });
  scale.style.background = `linear-gradient(to right, ${layer.colours.join(", ")})`;
  const below = layer.least !== null && layer.least < layer.low && layer.low !== 1;
  const above = layer.most !== null && layer.most > layer.high;
  const middle = (layer.low + layer.high) / 2;
  return h("figure", { class: "scale-figure" }, scale,
    h("div", { class: "ticks" }, h("span", {}, `${below ? "≤ " : ""}${shown(layer.low)}`), h("span", {}, shown(middle)), h("span", {}, `${above ? "≥ " : ""}${shown(layer.high)}`)),
    h("figcaption", {}, layer.unit));
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
