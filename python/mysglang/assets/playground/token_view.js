// An answer as its tokens, coloured by how likely each was; the likeliest others show on hover and focus.
//
// A token is { text, bytes, logprob, top: [[text, logprob], …] }. Arrow keys go from token to token.

import { $, el } from "./dom.js";

/** Probabilities at which a token's colour changes. A token below all of them has the last level. */
const LEVELS = [0.9, 0.6, 0.3, 0.1, 0.01];

export function tokenOf(told) {
  const top = (told.top_logprobs ?? []).map((other) => [other.token, other.logprob]);
  return { text: told.token, bytes: told.bytes, logprob: told.logprob, top };
}

export function level(logprob) {
  const at = LEVELS.findIndex((least) => Math.exp(logprob) >= least);
  return at < 0 ? LEVELS.length : at;
}

export const percent = (logprob) => {
  const share = Math.exp(logprob) * 100;
  return share >= 99.95 ? "100 %" : share >= 0.1 ? `${share.toFixed(1)} %` : "< 0.1 %";
};

/** White space as signs that can be seen. */
export const visible = (text) => text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ | $/g, "␣") || "∅";

/** An element that shows tokens; `update` gives it more of them. */
export class TokenView {
  constructor() {
    this.node = el("div", {
      class: "tokens",
      role: "group",
      "aria-label": "Tokens; arrow keys move between them",
      onkeydown: (event) => this.#move(event),
      onpointerover: (event) => this.#show(event.target),
      onpointerleave: hide,
      onfocusin: (event) => this.#show(event.target),
      onfocusout: hide,
    });
    this.tokens = [];
  }

  update(tokens) {
    for (const token of tokens.slice(this.tokens.length)) {
      const first = this.tokens.length === 0;
      const label = `${visible(token.text)}, ${percent(token.logprob)}`;
      const shown = token.text.replace(/\n/g, "↵\n");
      const attributes = { class: `token level${level(token.logprob)}`, role: "img", "aria-label": label };
      const span = el("span", { ...attributes, tabindex: first ? "0" : "-1" }, shown || "∅");
      span.dataset.at = String(this.tokens.length);
      this.tokens.push(token);
      this.node.append(span);
    }
  }

  #move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    const here = event.target.closest(".token");
    const next = step && here && (step > 0 ? here.nextElementSibling : here.previousElementSibling);
    if (event.key === "Escape") hide();
    if (!next) return;
    event.preventDefault();
    here.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  #show(target) {
    const span = target.closest?.(".token");
    if (span) show(span, this.tokens[Number(span.dataset.at)]);
  }
}

/** What the colours mean. */
export function legend() {
  const words = ["≥ 90 %", "≥ 60 %", "≥ 30 %", "≥ 10 %", "≥ 1 %", "less"];
  return el("p", { class: "legend" }, words.map((word, at) => el("span", { class: `token level${at}` }, word)));
}

function show(span, token) {
  const box = $("alternatives");
  const known = token.top.some(([text, logprob]) => text === token.text && logprob === token.logprob);
  const rows = known ? token.top : [...token.top, [token.text, token.logprob]];
  const bytes = token.text.includes("\ufffd") && token.bytes ? ` (bytes ${token.bytes.join(" ")})` : "";
  box.replaceChildren(
    el("p", { class: "small muted" }, `log-probability ${(token.logprob || 0).toFixed(3).replace("-0.000", "0.000")}${bytes}`),
    el("table", {}, el("tbody", {}, rows.map(([text, logprob]) => alternative(text, logprob, text === token.text)))),
  );
  box.hidden = false;
  const at = span.getClientRects()[0];
  const left = Math.min(Math.max(at.left, 8), innerWidth - box.offsetWidth - 8);
  const below = at.bottom + 6 + box.offsetHeight < innerHeight;
  box.style.left = `${left}px`;
  box.style.top = `${below ? at.bottom + 6 : at.top - box.offsetHeight - 6}px`;
}

function alternative(text, logprob, chosen) {
  const bar = el("span", { class: "bar" });
  bar.style.width = `${Math.exp(logprob) * 100}%`;
  return el("tr", { class: chosen ? "chosen" : null }, el("td", {}, el("code", {}, visible(text))), el("td", { class: "number" }, percent(logprob)), el("td", { class: "share" }, bar));
}

function hide() {
  $("alternatives").hidden = true;
}
