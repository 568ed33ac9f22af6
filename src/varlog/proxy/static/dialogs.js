// Dialogs: one at a time, closed by Escape or a click beside it; an action runs only after confirmation.

import { h } from "./dom.js";

/** A dialog with these children; resolves when it is gone. */
export function open(kind, label, ...children) {
  const dialog = h("dialog", { class: kind, "aria-label": label }, ...children);
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Ask for confirmation, then act. `what` describes what will happen; `perform` reads the fields. */
export function confirm({ title, what, fields = [], yes, danger = false, perform }) {
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const accept = h("button", { type: "submit", class: danger ? "danger" : "primary", text: yes });
  const cancel = h("button", { type: "button", text: "Cancel", onclick: () => dialog.close() });
  const buttons = h("div", { class: "buttons" }, cancel, accept);
  const form = h("form", { method: "dialog" }, h("h2", { text: title }), what, ...fields, problem, buttons);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    accept.disabled = true;
    problem.hidden = true;
    try {
      await perform(new FormData(form));
      dialog.close();
    } catch (error) {
      problem.replaceChildren(h("b", { text: sentence(error.message) }), ...(error.remedy ? [" ", error.remedy] : []));
      problem.hidden = false;
    } finally {
      accept.disabled = false;
    }
  });
  const dialog = open("confirm", title, form);
  // An action with consequences is not the default: a stray Enter does nothing.
  if (!fields.length) cancel.focus();
  return dialog;
}

/** A line at the bottom of the page that says what was done, and disappears by itself. */
export function say(words) {
  document.querySelector(".toast")?.remove();
  const note = h("p", { class: "toast", role: "status", text: words });
  document.body.append(note);
  setTimeout(() => note.remove(), 6000);
}

export function sentence(words) {
  const text = words.charAt(0).toUpperCase() + words.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
