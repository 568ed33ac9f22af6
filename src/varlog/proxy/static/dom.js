// Elements: made from code and kept by key, so that what is under the pointer or has the focus stays the same element.

const SVG = "http://www.w3.org/2000/svg";

/** An element. Properties that begin with "on" are listeners; `text` is its text; false and null leave an attribute out. */
export function h(name, properties = {}, ...children) {
  return fill(document.createElement(name), properties, children);
}

/** The same for SVG. */
export function s(name, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, name), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else attribute(element, name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Set or remove an attribute, only if it changes, so that no style is recomputed for nothing. */
export function attribute(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  const wanted = value === true ? "" : String(value);
  if (element.getAttribute(name) !== wanted) element.setAttribute(name, wanted);
}

/** Set the text, only if it changes: a screen reader and a selection notice every change. */
export function text(element, value) {
  const wanted = String(value ?? "");
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** Give `parent` one child for each item, in order. `make(item)` builds it once, `update(child, item)` brings it up to date. */
export function keyed(parent, items, keyOf, make, update) {
  const kept = new Map();
  for (const child of parent.children) if (child.dataset.key !== undefined) kept.set(child.dataset.key, child);
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = kept.get(key);
    if (child) {
      kept.delete(key);
    } else {
      child = make(item);
      child.dataset.key = key;
    }
    update?.(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of kept.values()) child.remove();
}

/** The first element below `parent` that matches; a missing one is a bug. */
export function find(selector, parent = document) {
  const found = parent.querySelector(selector);
  if (!found) throw new Error(`the page has no ${selector}`);
  return found;
}
