// Making DOM nodes. Text becomes text nodes and nothing else: no function here, and none elsewhere, parses markup.

/** A new element. Properties whose names begin with "on" are listeners; null, undefined and false leave one out. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** A node in SVG. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

/** One of the symbols of index.html. */
export function icon(name) {
  return svg("svg", { "aria-hidden": "true" }, svg("use", { href: `#i-${name}` }));
}

/** A button with an icon and a word. */
export function action(name, label, onclick) {
  return el("button", { type: "button", class: "action", onclick }, icon(name), el("span", {}, label));
}

export const $ = (id) => document.getElementById(id);

/** At most one call of `work` per frame, with the last arguments. */
export function eachFrame(work) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      work();
    });
  };
}
