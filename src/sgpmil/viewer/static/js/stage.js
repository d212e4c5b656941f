// A slide that is zoomed and moved, with a map, outlines and a scale bar over it (OpenSeadragon).

import { h, svg } from "./dom.js";

let library = null;

// OpenSeadragon is a plain script: it is loaded when the first slide is opened.
export function openSeadragon() {
  library ??= new Promise((resolve, reject) => {
    // OpenSeadragon would add a style of its own, which the policy of the page forbids, unless it
    // finds an element of this name. The rule is in viewer.css.
    const marker = document.createElementNS(null, "style");
    marker.setAttribute("data-openseadragon-mobile-css", "true");
    document.head.append(marker);
    const script = h("script", { src: "/static/vendor/openseadragon.min.js" });
    script.onload = () => resolve(window.OpenSeadragon);
    script.onerror = () => reject(new Error("OpenSeadragon cannot be loaded."));
    document.head.append(script);
  });
  return library;
}

export const MISSING = "OpenSeadragon, which zooms slides, is not installed. Get it once with: python -m sgpmil.viewer.vendor (it needs npm).";

const still = matchMedia("(prefers-reduced-motion: reduce)").matches;

export class Stage {
  // `label` names the picture; `onPick` receives a point that was clicked, in level-0 pixels.
  constructor(OSD, host, slide, { label, onPick, onMove, navigator = true }) {
    this.OSD = OSD;
    this.slide = slide;
    this.onPick = onPick;
    this.onMove = onMove;
    this.mapImage = null;
    this.wholeMap = null;
    this.mapTurn = 0;
    this.opacity = 0.6;
    this.drawn = null;
    const { width, height } = slide.frame;
    this.host = host;
    const canvas = h("div", { class: "osd" });
    this.group = svg("g");
    this.outlines = svg("g", { class: "outlines" });
    this.regions = svg("g", { class: "regions" });
    this.marks = svg("g", { class: "marks" });
    this.sketch = svg("g", { class: "sketch" });
    this.group.append(this.outlines, this.regions, this.marks, this.sketch);
    this.overlay = svg("svg", { class: "overlay", "aria-hidden": "true" }, this.group);
    this.bar = h("div", { class: "scale-bar" }, h("span", { class: "rule" }), h("span", { class: "length" }));
    host.replaceChildren(canvas, this.overlay, this.bar);
    this.viewer = OSD({
      element: canvas,
      drawer: "canvas",
      prefixUrl: "",
      showNavigationControl: false,
      showNavigator: navigator,
      navigatorPosition: "BOTTOM_RIGHT",
      navigatorSizeRatio: 0.18,
      navigatorAutoFade: false,
      animationTime: still ? 0 : 0.5,
      springStiffness: 9,
      maxZoomPixelRatio: 8,
      minZoomImageRatio: 0.5,
      visibilityRatio: 0.2,
      imageLoaderLimit: 12,
      maxImageCacheCount: 800,
      gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true },
      gestureSettingsTouch: { clickToZoom: false, dblClickToZoom: true },
      tileSources: this.source(`/slides/${slide.number}_files/`, "jpg", 254, 1),
    });
    this.viewer.canvas.setAttribute("role", "application");
    this.viewer.canvas.setAttribute("aria-label", label);
    this.viewer.canvas.setAttribute("aria-roledescription", "slide");
    // The page's own keys move the slide.
    this.viewer.addHandler("canvas-key", (event) => {
      event.preventDefaultAction = true;
      event.preventVerticalPan = true;
      event.preventHorizontalPan = true;
    });
    this.viewer.innerTracker.keyDownHandler = null;
    this.viewer.innerTracker.keyHandler = null;
    this.viewer.addHandler("canvas-click", (event) => {
      if (!event.quick || event.originalTarget.closest?.(".navigator")) return;
      const point = this.image.viewerElementToImageCoordinates(event.position);
      this.onPick?.(point.x, point.y, event);
    });
    this.ready = new Promise((resolve) => {
      this.viewer.addOnceHandler("open", () => {
        this.image = this.viewer.world.getItemAt(0);
        resolve(this);
        this.place();
      });
    });
    for (const name of ["update-viewport", "resize", "animation"]) this.viewer.addHandler(name, () => this.place());
    this.viewer.addHandler("animation-finish", () => this.onMove?.(this.view()));
    this.width = width;
    this.height = height;
  }

  source(folder, suffix, tileSize, tileOverlap, query = "") {
    const { width, height } = this.slide.frame;
    return { width, height, tileSize, tileOverlap, getTileUrl: (level, x, y) => `${folder}${level}/${x}_${y}.${suffix}${query}` };
  }

  // Show a map over the slide; null shows the slide alone.
  async setMap(layer, classIndex, least) {
    const turn = ++this.mapTurn;
    await this.ready;
    if (turn !== this.mapTurn) return;
    if (layer === null) {
      this.mapImage = null;
      return this.dropMaps();
    }
    const query = least === null ? "" : `?least=${least}`;
    const folder = `/maps/${this.slide.number}/${layer}/${classIndex}_files/`;
    await new Promise((resolve) => {
      this.viewer.addTiledImage({
        tileSource: this.source(folder, "png", 256, 0, query),
        opacity: this.opacity,
        success: ({ item }) => {
          if (turn !== this.mapTurn) this.viewer.world.removeItem(item);
          else {
            this.mapImage = item;
            // The last whole map stays until the new one is whole, so that nothing flickers.
            this.dropMaps(item, this.wholeMap);
            const whole = () => {
              if (item !== this.mapImage) return;
              this.wholeMap = item;
              this.dropMaps(item);
            };
            if (item.getFullyLoaded()) whole();
            else item.addOnceHandler("fully-loaded-change", whole);
          }
          resolve();
        },
        error: resolve,
      });
    });
  }

  // The slide, and the maps over it.
  get items() {
    const world = this.viewer.world;
    return Array.from({ length: world.getItemCount() }, (_, i) => world.getItemAt(i));
  }

  dropMaps(...kept) {
    for (const item of this.items.slice(1)) if (!kept.includes(item)) this.viewer.world.removeItem(item);
  }

  setOpacity(opacity) {
    this.opacity = opacity;
    for (const item of this.items.slice(1)) item.setOpacity(opacity);
  }

  // Whether all that is in view was drawn.
  get isLoaded() {
    return this.items.every((item) => item.getFullyLoaded());
  }

  setOutlines(rings, opacity) {
    this.outlines.setAttribute("opacity", opacity);
    this.outlines.replaceChildren(...rings.map((ring) => polygon(ring)));
  }

  setRegions(rings) {
    this.regions.replaceChildren(...rings.map((ring) => polygon(ring)));
  }

  setSketch(points) {
    const line = svg("polyline", { points: points.map((point) => point.join(",")).join(" ") });
    this.sketch.replaceChildren(line, ...points.map(([x, y]) => svg("circle", { cx: x, cy: y, r: 4 / this.scale })));
  }

  markPatch(patch) {
    this.marks.replaceChildren();
    if (!patch) return;
    const place = { x: patch.x, y: patch.y, width: patch.side, height: patch.side };
    this.marks.append(svg("rect", { ...place, class: "halo" }), svg("rect", place));
  }

  place() {
    if (!this.image) return;
    const zero = this.image.imageToViewerElementCoordinates(new this.OSD.Point(0, 0));
    const one = this.image.imageToViewerElementCoordinates(new this.OSD.Point(this.width, 0));
    this.scale = (one.x - zero.x) / this.width;
    this.group.setAttribute("transform", `matrix(${this.scale} 0 0 ${this.scale} ${zero.x} ${zero.y})`);
    this.drawBar();
  }

  drawBar() {
    const mpp = this.slide.frame.mpp;
    const unit = mpp ?? 1;
    const most = (Math.min(220, this.host.clientWidth * 0.3) / this.scale) * unit;
    const power = 10 ** Math.floor(Math.log10(most));
    const length = [5, 2, 1].map((step) => step * power).find((step) => step <= most * (1 + 1e-9));
    this.bar.firstChild.style.width = `${(length / unit) * this.scale}px`;
    const number = (value) => String(Number(value.toPrecision(3)));
    this.bar.lastChild.textContent = mpp === null ? `${number(length)} px` : length >= 1000 ? `${number(length / 1000)} mm` : `${number(length)} µm`;
  }

  // The middle of the view in level-0 pixels, and screen pixels a level-0 pixel.
  view() {
    if (!this.image) return null;
    const middle = this.image.viewportToImageCoordinates(this.viewer.viewport.getCenter());
    return { x: Math.round(middle.x), y: Math.round(middle.y), zoom: Number(this.scale.toPrecision(4)) };
  }

  show({ x, y, zoom }, immediately = true) {
    const viewport = this.viewer.viewport;
    viewport.zoomTo(this.image.imageToViewportZoom(zoom), null, immediately);
    viewport.panTo(this.image.imageToViewportCoordinates(x, y), immediately);
    viewport.applyConstraints(immediately);
  }

  fit(bounds, immediately = true) {
    const [left, top, right, bottom] = bounds;
    const margin = 0.04 * Math.max(right - left, bottom - top);
    const box = this.image.imageToViewportRectangle(left - margin, top - margin, right - left + 2 * margin, bottom - top + 2 * margin);
    this.viewer.viewport.fitBounds(box, immediately);
  }

  showPatch(patch) {
    const side = Math.min(this.host.clientWidth, this.host.clientHeight) || 400;
    this.show({ x: patch.x + patch.side / 2, y: patch.y + patch.side / 2, zoom: Math.min(2, side / (5 * patch.side)) });
    this.markPatch(patch);
  }

  move(x, y) {
    const { width, height } = this.viewer.viewport.getBounds();
    this.viewer.viewport.panBy(new this.OSD.Point(x * width * 0.2, y * height * 0.2));
    this.viewer.viewport.applyConstraints();
  }

  zoom(factor) {
    this.viewer.viewport.zoomBy(factor);
    this.viewer.viewport.applyConstraints();
  }

  home() {
    this.viewer.viewport.goHome();
  }

  // Move or zoom by a key; say whether it was one.
  key(key) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (moves[key]) this.move(...moves[key]);
    else if (key === "+" || key === "=") this.zoom(1.6);
    else if (key === "-" || key === "_") this.zoom(1 / 1.6);
    else if (key === "0") this.home();
    else return false;
    return true;
  }

  close() {
    this.mapTurn += 1;
    this.viewer.destroy();
  }
}

function polygon(ring) {
  const points = ring.map((point) => point.join(",")).join(" ");
  return svg("g", {}, svg("polygon", { points, class: "halo" }), svg("polygon", { points }));
}
