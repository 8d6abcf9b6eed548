// The Cache view: the radix tree of cached prefixes. A row is a run of tokens; what stands below it continues it.

import { $, el, icon } from "./dom.js";
import { get, keyOf } from "./api.js";
import { askForKeys, withKey } from "./key_dialog.js";
import { Poll } from "./poll.js";

const PERIOD = 2000; // ms
const OPEN_LEVELS = 4;

const whole = new Intl.NumberFormat("en");
const counted = (tokens) => `${whole.format(tokens)} ${tokens === 1 ? "token" : "tokens"}`;

function ago(seconds) {
  if (seconds < 2) return "just now";
  if (seconds < 120) return `${Math.round(seconds)} s ago`;
  return seconds < 3600 ? `${Math.round(seconds / 60)} min ago` : "over 1 h ago";
}

export class CachePage {
  constructor(section) {
    this.#summary = el("dl", { class: "summary" });
    this.#tree = el("ul", { role: "tree", "aria-label": "Cached prefixes", class: "tree" });
    this.#problem = el("div", { class: "card", hidden: true });
    this.#note = el("p", { class: "muted small" });
    section.append(el("h1", {}, "Prefix cache"), this.#summary, this.#problem, this.#tree, this.#note);
    this.#tree.addEventListener("keydown", (event) => this.#key(event));
    this.#tree.addEventListener("click", (event) => this.#flip(event.target.closest("[role=treeitem]")));
    this.#poll = new Poll(() => this.#ask(), PERIOD, () => !section.hidden);
  }

  #summary; #tree; #problem; #note; #poll;
  #flipped = new Set();
  #known = new Set();
  #focused = null;
  #told = null;

  look() {
    this.#poll.wake();
  }

  async #ask() {
    try {
      this.#told = await withKey(() => get("playground/cache_tree", { admin: true }));
    } catch (error) {
      this.#refused(error);
      return error.status !== 401 && error.status !== 403;
    }
    this.#problem.hidden = true;
    this.#draw();
    return true;
  }

  #refused(error) {
    const again = el("button", { class: "primary", type: "button" }, keyOf("admin") ? "Use another admin key" : "Use an admin key");
    again.addEventListener("click", () => askForKeys("The Cache view is for the operator of the server.", "admin-key"));
    const closed = error.status === 403 || error.status === 401;
    this.#problem.replaceChildren(el("h2", {}, closed ? "This view is for the operator" : "No answer"), el("p", {}, error.message), closed ? again : "");
    this.#problem.hidden = false;
    this.#summary.replaceChildren();
    this.#tree.replaceChildren();
    this.#note.textContent = "";
  }

  #draw() {
    const told = this.#told;
    const shown = told.nodes.filter((node) => node.parent !== null);
    const figures = [
      ["Cached", `${whole.format(told.cached_tokens)} tokens`],
      ["In use by requests", `${whole.format(told.locked_tokens)} tokens`],
      ["Runs", whole.format(told.num_nodes)],
      ["Namespaces", whole.format(told.namespaces)],
    ];
    this.#summary.replaceChildren(...figures.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
    this.#note.textContent = this.#words(told, shown);
    const below = Map.groupBy ? Map.groupBy(told.nodes, (node) => node.parent) : grouped(told.nodes);
    const most = Math.max(1, ...shown.map((node) => node.tokens));
    const rows = [];
    // A namespace of its own line only where there are several: a server without salts has one.
    for (const root of below.get(null) ?? []) this.#rows(root, told.namespaces > 1 ? 1 : 0, below, most, rows);
    this.#tree.replaceChildren(...rows);
    const first = rows.find((row) => row.dataset.id === this.#focused) ?? rows[0];
    if (first) first.tabIndex = 0;
    if (this.#focused && document.activeElement === document.body) first?.focus({ preventScroll: true });
    this.#known = new Set(told.nodes.map((node) => node.id));
  }

  #words(told, shown) {
    if (!told.enabled) return "This server caches no prefixes (--disable-radix-cache).";
    if (!told.num_nodes) return "Nothing is cached yet. Ask something in the Chat view.";
    const tokens = shown.reduce((sum, node) => sum + node.tokens, 0);
    const left = told.num_nodes - shown.length;
    const rest = left > 0 ? `${whole.format(left)} smaller runs with ${whole.format(Math.max(told.cached_tokens - tokens, 0))} tokens are left out. ` : "";
    return rest + (told.shows_text ? "Text is shown because this server answers this machine alone." : "Text is not shown: it may be other people's.");
  }

  #rows(node, level, below, most, rows) {
    const children = below.get(node.id) ?? [];
    const open = (level < OPEN_LEVELS || node.locks > 0) !== this.#flipped.has(node.id);
    if (level) rows.push(this.#row(node, level, children.length ? open : null, most));
    if (!level || open) for (const child of children) this.#rows(child, level + 1, below, most, rows);
  }

  #row(node, level, open, most) {
    const root = node.parent === null;
    const bar = el("span", { class: "bar" });
    bar.style.width = `${(node.tokens / most) * 100}%`;
    const name = root ? (node.is_default ? "Requests without a salt" : "A namespace of its own") : (node.text ?? "");
    const row = el(
      "li",
      {
        role: "treeitem",
        class: `node${node.locks ? " used" : ""}${this.#known.size && !this.#known.has(node.id) ? " new" : ""}`,
        "aria-level": level,
        "aria-expanded": open === null ? null : String(open),
        tabindex: "-1",
        dataset: { id: node.id },
      },
      el("span", { class: "twig", "aria-hidden": "true" }, open === null ? "" : icon("chevron")),
      el("span", { class: "text" }, name ? el("code", {}, name.replace(/\n/g, "↵")) : el("span", { class: "muted" }, "text not shown")),
      el("span", { class: "size" }, root ? "" : el("span", { class: "track", "aria-hidden": "true" }, bar), root ? "" : counted(node.tokens)),
      el("span", { class: "locks" }, node.locks ? `${node.locks} ${node.locks === 1 ? "request" : "requests"}` : ""),
      el("span", { class: "age muted" }, node.locks ? "now" : ago(node.idle_s)),
      node.hidden ? el("span", { class: "muted more" }, `${node.hidden} more below`) : "",
    );
    row.style.setProperty("--level", String(level - 1));
    return row;
  }

  #flip(row) {
    if (!row) return;
    this.#focused = row.dataset.id;
    if (row.hasAttribute("aria-expanded")) {
      const id = Number(row.dataset.id);
      if (!this.#flipped.delete(id)) this.#flipped.add(id);
    }
    this.#draw();
    this.#tree.querySelector(`[data-id="${this.#focused}"]`)?.focus({ preventScroll: true });
  }

  #key(event) {
    const row = event.target.closest("[role=treeitem]");
    if (!row) return;
    const open = row.getAttribute("aria-expanded");
    const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
    const flips = event.key === "Enter" || (event.key === "ArrowRight" && open === "false") || (event.key === "ArrowLeft" && open === "true");
    if (!next && !flips) return;
    event.preventDefault();
    if (flips) return this.#flip(row);
    row.tabIndex = -1;
    next.tabIndex = 0;
    this.#focused = next.dataset.id;
    next.focus();
  }
}

function grouped(nodes) {
  const groups = new Map();
  for (const node of nodes) groups.set(node.parent, [...(groups.get(node.parent) ?? []), node]);
  return groups;
}
