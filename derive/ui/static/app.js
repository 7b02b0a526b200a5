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
// The editor completes names: it lists those that continue the word before the cursor.
const editor = document.getElementById("sql");
if (editor) {
  const list = document.getElementById("completions");
  const most = 8;
  let names = [];
  let isLoaded = false;
  let begin = 0;
  let chosen = -1;
  const load = async () => {
    if (isLoaded) return;
    isLoaded = true;
    try {
      const response = await fetch(editor.dataset.names);
      if (response.ok) names = await response.json();
      suggest();
    } catch {
      // without the server, the editor is a plain field
    }
  };
  const close = () => {
    list.hidden = true;
    list.replaceChildren();
    editor.removeAttribute("aria-activedescendant");
    chosen = -1;
  };
  const choose = (index) => {
    chosen = index;
    [...list.children].forEach((option, place) => option.setAttribute("aria-selected", String(place === index)));
    editor.setAttribute("aria-activedescendant", list.children[index].id);
  };
  const take = (index) => {
    const end = editor.selectionStart;
    editor.setRangeText(list.children[index].dataset.text, begin, end, "end");
    close();
    editor.focus();
  };
  const suggest = () => {
    const before = editor.value.slice(0, editor.selectionStart);
    const isQuoted = before.split('"').length % 2 === 0;
    const word = (isQuoted ? /"[^"]*$/ : /[\p{L}_][\p{L}\p{N}_$/-]*$/u).exec(before);
    close();
    if (!word || word[0].length < 2 || document.activeElement !== editor) return;
    begin = word.index;
    const wanted = word[0].replace(/^"/, "").toLowerCase();
    const plain = (name) => name.replace(/^"/, "").toLowerCase();
    const starting = names.filter(([name]) => plain(name).startsWith(wanted));
    const containing = names.filter(([name, kind]) => kind !== "word" && plain(name).indexOf(wanted) > 0);
    const matching = [...starting, ...containing].filter(([name]) => name !== word[0]).slice(0, most);
    for (const [index, [name, kind]] of matching.entries()) {
      const option = document.createElement("li");
      option.id = `completion-${index}`;
      option.setAttribute("role", "option");
      option.setAttribute("aria-selected", "false");
      option.dataset.text = name;
      const text = document.createElement("bdi");
      text.textContent = name;
      const note = document.createElement("small");
      note.textContent = kind;
      option.append(text, " ", note);
      list.append(option);
    }
    list.hidden = matching.length === 0;
  };
  editor.addEventListener("focus", load);
  if (document.activeElement === editor) load();
  editor.addEventListener("input", suggest);
  editor.addEventListener("blur", close);
  list.addEventListener("mousedown", (event) => {
    const option = event.target.closest("li");
    event.preventDefault(); // the editor keeps the focus
    if (option) take([...list.children].indexOf(option));
  });
  editor.addEventListener("keydown", (event) => {
    const count = list.children.length;
    if (list.hidden || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowDown") choose((chosen + 1) % count);
    else if (event.key === "ArrowUp") choose((chosen + count - (chosen < 0 ? 0 : 1)) % count);
    else if (event.key === "Enter" && chosen >= 0) take(chosen);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  });
}
