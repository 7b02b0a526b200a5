"use strict";
// A slider writes its time into the field that it names.
document.addEventListener("input", (event) => {
  const slider = event.target;
  if (slider instanceof HTMLInputElement && slider.type === "range") {
    document.getElementById(slider.dataset.sets).value = new Date(Number(slider.value)).toISOString();
  }
});
// Ctrl+Enter runs the statements of the editor.
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target instanceof HTMLTextAreaElement) {
    event.target.form.requestSubmit();
  }
});
