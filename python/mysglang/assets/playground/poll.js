// Asking again and again, while somebody looks: neither a hidden view nor a hidden tab asks anything.

/** Calls `work` every `period` ms while `looking()`. `wake` starts it again after a pause. */
export class Poll {
  #work; #period; #looking;
  #timer = 0;
  #asking = false;

  constructor(work, period, looking) {
    this.#work = work;
    this.#period = period;
    this.#looking = looking;
    document.addEventListener("visibilitychange", () => this.wake());
    document.addEventListener("keys", () => this.wake());
  }

  async wake() {
    clearTimeout(this.#timer);
    if (this.#asking || document.hidden || !this.#looking()) return;
    this.#asking = true;
    const goOn = await this.#work().finally(() => (this.#asking = false));
    if (goOn) this.#timer = setTimeout(() => this.wake(), this.#period);
  }
}
