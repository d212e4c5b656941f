// The help sheet: what each key does.

import { h, replace } from "./dom.js";

const KEYS = [
  ["Everywhere", [["?", "this sheet"], ["Esc", "leave a field, close, or go back"]]],
  [
    "Worklist",
    [["j, k", "next and previous slide"], ["Enter", "open the slide"], ["/", "search"]],
  ],
  [
    "Slide, and two models",
    [
      ["← ↑ → ↓", "move"],
      ["+  −", "zoom in and out"],
      ["0", "whole slide"],
      ["1 … 9", "choose a layer; 1 is the slide alone"],
      ["[  ]", "opacity of the layer"],
      [",  .", "threshold lower and higher"],
      ["a", "show or hide annotations"],
    ],
  ],
  [
    "Slide",
    [
      ["c", "values of the patch in the middle"],
      ["k", "next patch to look at"],
      ["n, p", "next and previous slide of the worklist"],
      ["r", "write a verdict"],
      ["d", "draw a region; Enter ends it, Esc drops it"],
    ],
  ],
];

export function showHelp() {
  const dialog = document.getElementById("help");
  replace(
    dialog,
    // First, so that the sheet begins at its top: the focus goes to the button.
    h("div", { class: "dialog-head" }, h("h2", { id: "help-title" }, "Keys"), h("button", { type: "button", onclick: () => dialog.close() }, "Close")),
    KEYS.map(([title, keys]) => [
      h("h3", {}, title),
      h("dl", { class: "keys" }, keys.map(([key, text]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)))),
    ]),
  );
  dialog.showModal();
  dialog.scrollTop = 0;
}
