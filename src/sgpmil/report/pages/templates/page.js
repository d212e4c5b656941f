"use strict";
// Long tables are sorted by a click on a column's name; without scripts they stay as written.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const key = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const number = Number(text.replace("−", "-").replaceAll(",", ""));
    return text !== "" && !Number.isNaN(number) ? number : text;
  };
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    if (!button.textContent.trim()) return;
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [key(a, column), key(b, column)];
        const order = typeof x === typeof y ? (x > y) - (x < y) : typeof x === "number" ? -1 : 1;
        return up ? order : -order;
      });
      body.append(...rows);
    });
  });
}
for (const part of document.querySelectorAll("details")) {
  // What is folded away on the screen is printed.
  addEventListener("beforeprint", () => { part.dataset.was = part.open ? "1" : ""; part.open = true; });
  addEventListener("afterprint", () => { part.open = part.dataset.was === "1"; });
}
