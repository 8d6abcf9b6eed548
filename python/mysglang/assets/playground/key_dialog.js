// The dialog that asks for keys, and the repetition of what failed for lack of one.

import { $ } from "./dom.js";
import { ApiError, keepKey, keyOf } from "./api.js";

/** Shows the dialog; resolves to whether the user saved. */
export function askForKeys(reason = "", field = "api-key") {
  const dialog = $("keys");
  if (dialog.open) return Promise.resolve(false);
  $("keys-reason").textContent = reason;
  $("api-key").value = keyOf("api");
  $("admin-key").value = keyOf("admin");
  // Enter in a field presses the first button of a form, which is the one that cancels.
  dialog.onkeydown = (event) => {
    if (event.key === "Enter" && event.target.matches("input")) {
      event.preventDefault();
      dialog.close("save");
    }
  };
  dialog.returnValue = "";
  dialog.showModal();
  $(field).focus();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        const saved = dialog.returnValue === "save";
        if (saved) {
          keepKey("api", $("api-key").value.trim());
          keepKey("admin", $("admin-key").value.trim());
          document.dispatchEvent(new Event("keys"));
        }
        resolve(saved);
      },
      { once: true },
    );
  });
}

/** The result of `work`; where that needs a key, asks for one and tries again, until the user gives up. */
export async function withKey(work) {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      const refused = error instanceof ApiError && error.status === 401;
      const reason = keyOf("api") ? "This key is not one of the server's." : "This server asks for an API key.";
      if (!refused || !(await askForKeys(reason))) throw error;
    }
  }
}
