// The Server view: what the server does now and did in the last minute.

import { el, svg } from "./dom.js";
import { get } from "./api.js";
import { withKey } from "./key_dialog.js";
import { difference, quantile } from "./percentiles.js";
import { Poll } from "./poll.js";

const PERIOD = 1000; // ms
const KEPT = 60; // snapshots
const LATENCY_WINDOW = 60; // seconds

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumFractionDigits: 1, notation: "compact" });
const share = (part) => `${(part * 100).toFixed(part < 0.1 && part > 0 ? 1 : 0)} %`;
const time = (seconds) => {
  if (seconds === null) return "–";
  // No line break between a number and its unit.
  return seconds < 1 ? `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)}\u00a0ms` : `${seconds.toFixed(2)}\u00a0s`;
};

export class Dashboard {
  constructor(section) {
    this.#problem = el("p", { class: "problem", role: "status", hidden: true });
    this.#tiles = {
      running: new Tile("Running", "requests that have a place"),
      waiting: new Tile("Waiting", "requests in the queue"),
      generated: new Tile("Generated", "tokens per second"),
      prompt: new Tile("Prompts", "tokens per second, computed"),
      memory: new Tile("KV cache", "of its tokens in use"),
      hits: new Tile("Cache hits", "of the prompts that began last"),
      ttft: new Tile("Time to first token", "median; last minute"),
      itl: new Tile("Between tokens", "median; last minute"),
    };
    this.#memory = new Memory();
    section.append(
      el("h1", {}, "Server"),
      this.#problem,
      el("div", { class: "tiles" }, Object.values(this.#tiles).map((tile) => tile.node)),
      this.#memory.node,
      el("p", { class: "muted small" }, "Figures of the scheduler are about a second old. Percentiles are estimated from histograms, of requests that came since this view was opened."),
    );
    this.#poll = new Poll(() => this.#ask(), PERIOD, () => !section.hidden);
  }

  #problem; #tiles; #memory; #poll;
  #seen = [];

  look() {
    this.#poll.wake();
  }

  async #ask() {
    try {
      const told = await withKey(() => get("playground/live"));
      this.#problem.hidden = true;
      this.#add(told);
    } catch (error) {
      this.#problem.textContent = error.message;
      this.#problem.hidden = false;
      return error.status !== 401;
    }
    return true;
  }

  #add(told) {
    const last = this.#seen.at(-1);
    if (last && (told.generated_tokens < last.generated_tokens || told.heard_at < last.heard_at)) this.#seen = []; // another server
    this.#seen.push(told);
    if (this.#seen.length > KEPT) this.#seen.shift();
    const tiles = this.#tiles;
    tiles.running.show(whole.format(told.running), this.#seen.map((one) => one.running), `at most ${whole.format(told.max_running)}`);
    const grammar = told.grammar_waiting ? `${told.grammar_waiting} for their grammar` : "requests in the queue";
    tiles.waiting.show(whole.format(told.waiting), this.#seen.map((one) => one.waiting), grammar);
    this.#rate(tiles.generated, "generated_tokens");
    this.#rate(tiles.prompt, "prompt_tokens");
    tiles.hits.show(share(told.cache_hit_rate), this.#seen.map((one) => one.cache_hit_rate), tiles.hits.words, 1);
    const used = this.#seen.map((one) => one.kv_used / one.kv_total);
    tiles.memory.show(share(used.at(-1)), used, tiles.memory.words, 0.01);
    this.#latency(tiles.ttft, "time_to_first_token");
    this.#latency(tiles.itl, "inter_token_latency");
    this.#memory.show(told);
    if (told.silent_s > 5) {
      this.#problem.textContent = `The scheduler has been silent for ${told.silent_s.toFixed(0)} s.`;
      this.#problem.hidden = false;
    }
  }

  /** Tokens per second between two signs of life of the scheduler. */
  #rate(tile, name) {
    const fresh = this.#seen.filter((one, at) => !at || one.heard_at !== this.#seen[at - 1].heard_at);
    const rates = fresh.slice(1).map((one, at) => (one[name] - fresh[at][name]) / (one.heard_at - fresh[at].heard_at));
    tile.show(rates.length ? short.format(rates.at(-1)) : "–", rates, tile.words);
  }

  #latency(tile, name) {
    const now = this.#seen.at(-1);
    const older = this.#seen.find((one) => now.time - one.time <= LATENCY_WINDOW);
    const lately = difference(now[name], older[name]);
    const [middle, high, highest] = [0.5, 0.9, 0.99].map((q) => (lately ? quantile(lately, q) : null));
    const medians = this.#seen.slice(1).map((one, at) => {
      const added = difference(one[name], this.#seen[at][name]);
      return added && quantile(added, 0.5);
    });
    tile.show(time(middle), medians, middle === null ? "no request in the last minute" : `p90 ${time(high)} · p99 ${time(highest)}`);
  }
}

/** A figure with its name, a line of words, and how it was lately. */
class Tile {
  constructor(name, words) {
    this.words = words;
    this.#value = el("dd", { class: "value" }, "–");
    this.#about = el("dd", { class: "muted small" }, words);
    this.#line = svg("path", { class: "line" });
    this.#area = svg("path", { class: "area" });
    const drawing = svg("svg", { viewBox: "0 0 120 32", preserveAspectRatio: "none", "aria-hidden": "true", class: "spark" }, this.#area, this.#line);
    this.node = el("dl", { class: "tile" }, el("dt", {}, name), this.#value, this.#about, drawing);
  }

  #value; #about; #line; #area;

  /** `values`: oldest first; null where nothing was seen. `top`: the least height of the drawing. */
  show(value, values, about, top = 0) {
    this.#value.textContent = value;
    this.#about.textContent = about;
    const most = Math.max(top, ...values.filter((one) => one !== null), 1e-9);
    let held = 0;
    const points = values.map((one, at) => {
      held = one ?? held;
      return `${(120 - (values.length - 1 - at) * (120 / (KEPT - 1))).toFixed(2)} ${(31 - (held / most) * 29).toFixed(2)}`;
    });
    if (points.length < 2) return;
    const first = points[0].split(" ")[0];
    this.#line.setAttribute("d", `M${points.join("L")}`);
    this.#area.setAttribute("d", `M${first} 32L${points.join("L")}L120 32Z`);
  }
}

/** Where the tokens of the KV cache are. */
class Memory {
  constructor() {
    this.#parts = { used: el("span", { class: "used" }), cached: el("span", { class: "cached" }) };
    this.#words = el("p", { class: "small" });
    const bar = el("div", { class: "memory-bar", "aria-hidden": "true" }, Object.values(this.#parts));
    this.node = el("section", { class: "card" }, el("h2", {}, "KV cache"), bar, this.#words);
  }

  #parts; #words;

  show({ kv_total: total, kv_used: used, kv_cached: cached }) {
    this.#parts.used.style.width = `${(used / total) * 100}%`;
    this.#parts.cached.style.width = `${(cached / total) * 100}%`;
    const key = (name, words) => el("span", { class: `key ${name}` }, words);
    this.#words.replaceChildren(
      key("used", `${whole.format(used)} tokens in use (${share(used / total)})`),
      key("cached", `${whole.format(cached)} cached, free when wanted`),
      key("free", `${whole.format(total - used - cached)} free`),
    );
  }
}
