// Tells screen readers what streams in, sentence by sentence: a region that changes with every token is only noise.

import { el } from "./dom.js";

export class Speaker {
  #region;
  #said = 0;

  constructor(region) {
    this.#region = region;
  }

  begin() {
    this.#said = 0;
    this.#region.replaceChildren();
  }

  /** Says the sentences of `text` that are complete and were not said yet. */
  say(text) {
    const ends = [...text.slice(this.#said).matchAll(/[.!?:]\s|\n/g)];
    if (ends.length) this.#speak(text, this.#said + ends.at(-1).index + 1);
  }

  /** Says the rest. */
  end(text) {
    this.#speak(text, text.length);
  }

  #speak(text, end) {
    const piece = text.slice(this.#said, end).trim();
    this.#said = end;
    if (piece) this.#region.append(el("span", {}, `${piece} `));
  }
}
