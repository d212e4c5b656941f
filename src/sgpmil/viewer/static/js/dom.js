// Elements made of plain text: nothing that a run or a person wrote is ever read as HTML.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name in element && !name.startsWith("aria") && name !== "list" && name !== "form") {
      element[name] = value;
    } else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function replace(parent, ...children) {
  parent.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

export function announce(text) {
  document.getElementById("live").textContent = text;
}

export function debounce(action, wait) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), wait);
  };
}

export function percent(share, digits = 0) {
  if (share === null || share === undefined) return "–";
  // What would be rounded to none or all is a bound, as probabilities are elsewhere.
  const value = 100 * share;
  const step = 10 ** -digits;
  if (value > 0 && value < step) return `<${step} %`;
  if (value < 100 && value > 100 - step) return `>${(100 - step).toFixed(digits)} %`;
  return `${value.toFixed(digits)} %`;
}

// A number of a column, whose numbers have as many decimals each.
export function decimals(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  const step = 10 ** -digits;
  return value > 0 && value < step ? `<${step}` : value.toFixed(digits).replace("-", "−");
}

export function shown(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(1).replace("-", "−");
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

export const count = (number, one, several = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : several}`;
