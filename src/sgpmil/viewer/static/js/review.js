// Verdict, note and drawn regions of one person on one slide.

import { ApiError, get, put } from "./api.js";
import { announce, count, h, replace } from "./dom.js";

const NAME = "sgpmil-reviewer";
const WORDS = { agree: "Agree", disagree: "Disagree", unsure: "Unsure" };

// Verdicts that were begun and not saved, by slide: they are there again when the slide is.
const drafts = new Map();
let shownPanel = null;

addEventListener("beforeunload", (event) => {
  if (drafts.size || shownPanel?.isChanged) event.preventDefault();
});

function storedName() {
  try {
    return localStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}

export class ReviewPanel {
  constructor(slide, run, stage) {
    this.slide = slide;
    this.run = run;
    this.stage = stage;
    this.version = 0;
    this.regions = [];
    this.sketch = null;
    this.isChanged = false;
    this.element = h("div", { class: "review" });
  }

  async load() {
    shownPanel = this;
    const all = await get(`/api/slides/${this.slide.number}/reviews`);
    if (shownPanel !== this) return;
    this.others = all;
    this.build();
    this.take(storedName());
    const draft = drafts.get(this.slide.name);
    if (draft) this.restore(draft);
    drafts.delete(this.slide.name);
  }

  // Keep what was not saved.
  leave() {
    shownPanel = null;
    if (this.isChanged) drafts.set(this.slide.name, { name: this.name.value, verdict: this.verdict, note: this.note.value, regions: this.regions });
  }

  restore({ name, verdict, note, regions }) {
    this.name.value = name;
    this.take(name.trim());
    this.isChanged = true;
    this.note.value = note;
    for (const label of this.radios) label.firstChild.checked = label.firstChild.value === verdict;
    this.regions = regions;
    this.drawRegions();
    this.message.textContent = "This verdict is not saved yet.";
  }

  get verdict() {
    return this.radios.map((label) => label.firstChild).find((radio) => radio.checked)?.value;
  }

  build() {
    const disabled = this.run.read_only;
    this.name = h("input", { type: "text", value: storedName(), maxLength: 100, required: true, disabled, autocomplete: "name", onchange: () => this.take(this.name.value.trim()) });
    this.note = h("textarea", { rows: 3, maxLength: 10000, disabled, oninput: () => (this.isChanged = true) });
    this.radios = Object.entries(WORDS).map(([value, words]) => h("label", { class: "chip" }, h("input", { type: "radio", name: "verdict", value, disabled, onchange: () => (this.isChanged = true) }), h("span", {}, words)));
    this.list = h("ul", { class: "region-list" });
    this.message = h("p", { class: "message-line", role: "status" });
    this.drawButton = h("button", { type: "button", disabled: disabled || !this.stage, onclick: () => (this.sketch ? this.finish() : this.begin()) }, "Draw a region");
    replace(
      this.element,
      this.run.read_only ? h("p", { class: "quiet" }, "The viewer was started read-only: verdicts cannot be saved.") : null,
      h("form", { onsubmit: (event) => { event.preventDefault(); this.save(); } },
        h("label", { class: "field" }, h("span", {}, "Your name"), this.name),
        h("fieldset", { class: "chips" }, h("legend", {}, `Is “${this.slide.predicted}” right?`), this.radios),
        h("label", { class: "field" }, h("span", {}, "Note"), this.note),
        h("div", { class: "row" }, this.drawButton,
          h("button", { type: "button", disabled: disabled || !this.stage, onclick: () => this.addView() }, "Add what is in view")),
        this.list,
        h("div", { class: "row" }, h("button", { type: "submit", class: "main", disabled }, "Save the verdict"),
          h("a", { href: "/api/reviews.csv", download: "verdicts.csv" }, "CSV"), h("a", { href: `/api/reviews.geojson?slide=${this.slide.number}`, download: "regions.geojson" }, "GeoJSON")),
        this.message),
      this.othersList(),
    );
  }

  othersList() {
    if (!this.others.length) return h("p", { class: "quiet" }, "Nobody has looked at this slide yet.");
    return h("div", {}, h("h3", {}, "All verdicts"), h("ul", { class: "plain" }, this.others.map((one) =>
      h("li", {}, h("strong", {}, one.reviewer), ": ", h("span", { class: `tag ${one.verdict}` }, one.verdict), ` ${one.saved.slice(0, 10)}`, one.regions.length ? `, ${count(one.regions.length, "region")}` : "", one.predicted === this.slide.predicted ? "" : `, on the earlier prediction ${one.predicted}`, one.note ? h("p", { class: "note" }, one.note) : null))));
  }

  // Show the verdict that a person saved before, unless another was begun here.
  take(name) {
    const own = this.others.find((one) => one.reviewer === name);
    this.version = own?.version ?? 0;
    if (this.isChanged) {
      this.message.textContent = own ? `${name} already said “${own.verdict}”. Saving replaces it; the history keeps both.` : "";
      return;
    }
    this.note.value = own?.note ?? "";
    for (const label of this.radios) label.firstChild.checked = label.firstChild.value === own?.verdict;
    this.regions = own?.regions ?? [];
    this.drawRegions();
  }

  begin() {
    if (this.run.read_only) return;
    this.sketch = [];
    this.drawButton.textContent = "End the region";
    this.stage.host.classList.add("drawing");
    this.message.textContent = "Click the corners of the region on the slide. Enter ends it, Esc drops it.";
  }

  // Take a click on the slide as a corner; say whether it was one.
  corner(x, y) {
    if (!this.sketch) return false;
    this.sketch.push([Math.round(x), Math.round(y)]);
    this.stage.setSketch(this.sketch);
    return true;
  }

  finish(keep = true) {
    if (!this.sketch) return false;
    const ring = this.sketch;
    this.sketch = null;
    this.stage.setSketch([]);
    this.stage.host.classList.remove("drawing");
    this.drawButton.textContent = "Draw a region";
    if (keep && ring.length >= 3) this.addRegion(ring);
    else this.message.textContent = keep ? "A region needs three corners." : "";
    return true;
  }

  addView() {
    const { OSD, image, viewer, slide } = this.stage;
    const box = image.viewportToImageRectangle(viewer.viewport.getBounds());
    const left = Math.max(0, box.x), top = Math.max(0, box.y);
    const right = Math.min(slide.frame.width, box.x + box.width), bottom = Math.min(slide.frame.height, box.y + box.height);
    if (OSD && right > left && bottom > top) this.addRegion([[left, top], [right, top], [right, bottom], [left, bottom]].map((point) => point.map(Math.round)));
  }

  addRegion(ring) {
    this.regions = [...this.regions, ring];
    this.isChanged = true;
    this.message.textContent = "The region is saved with the verdict.";
    this.drawRegions();
  }

  drawRegions() {
    this.stage?.setRegions(this.regions);
    replace(this.list, this.regions.map((ring, number) => h("li", {}, `Region ${number + 1} (${count(ring.length, "corner")}) `,
      h("button", { type: "button", class: "as-link", disabled: this.run.read_only, onclick: () => { this.regions = this.regions.filter((_, i) => i !== number); this.isChanged = true; this.drawRegions(); } }, "Remove", h("span", { class: "hidden" }, ` region ${number + 1}`)))));
  }

  async save() {
    if (this.isSaving) return;
    const reviewer = this.name.value.trim();
    const { verdict } = this;
    if (!reviewer || !verdict) {
      this.message.textContent = reviewer ? "Choose a verdict first." : "Write your name first.";
      return;
    }
    try {
      localStorage.setItem(NAME, reviewer);
    } catch {
      // Private windows keep nothing.
    }
    const note = this.note.value;
    this.isSaving = true;
    try {
      const saved = await put(`/api/slides/${this.slide.number}/reviews`, { reviewer, version: this.version, verdict, note, regions: this.regions });
      this.others = [...this.others.filter((one) => one.reviewer !== reviewer), saved];
      this.version = saved.version;
      this.isChanged = false;
      this.element.lastChild.replaceWith(this.othersList());
      this.message.textContent = `Saved (version ${saved.version}).`;
      announce("The verdict is saved.");
    } catch (error) {
      if (error instanceof ApiError && error.status === 409 && error.content?.current) this.conflict(error);
      else this.message.textContent = error.message;
    } finally {
      this.isSaving = false;
    }
  }

  // Somebody saved under this name meanwhile: show it, and keep what was typed here.
  conflict(error) {
    const other = error.content.current;
    this.version = other.version;
    const regions = other.regions.length ? ` and has ${count(other.regions.length, "region")}` : "";
    replace(this.message, `${error.message} It says “${other.verdict}”${regions}${other.note ? `: ${other.note}` : "."} `, "Saving again replaces all of it. The history keeps both: export it at Verdicts.");
  }
}
