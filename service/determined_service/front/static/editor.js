// A configuration is checked while it is typed: the form is sent as its Check button would, and the part of the
// answer that says what is wrong is shown. Without this script, the buttons of the form do the same.
"use strict";

for (const form of document.querySelectorAll("form[data-editor]")) {
  const text = form.querySelector("textarea");
  const place = form.querySelector("#checked");
  let asked = 0;
  let waiting = 0;

  async function check() {
    const mine = ++asked;
    place.setAttribute("aria-busy", "true");
    if (place.querySelector(".empty")) place.querySelector(".empty").textContent = "Checking…";
    const fields = new URLSearchParams(new FormData(form));
    fields.set("do", "check");
    try {
      const answer = await fetch(form.action, { method: "POST", body: fields });
      if (mine !== asked) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const found = page.getElementById("checked");
      if (found) place.replaceChildren(...found.childNodes);
      else place.textContent = page.querySelector("main")?.textContent ?? "The service refused to check it.";
    } catch {
      if (mine === asked) place.textContent = "The service does not answer; what you typed is still here.";
    }
    if (mine === asked) place.removeAttribute("aria-busy");
  }

  form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(check, 600); });
  form.addEventListener("submit", (event) => {
    clearTimeout(waiting);
    if (event.submitter?.value === "check") { event.preventDefault(); check(); }
  });

  // A mistake's line is a button that selects the line.
  place.addEventListener("click", (event) => {
    const line = Number(event.target.closest?.("[data-line]")?.dataset.line);
    if (!line) return;
    const lines = text.value.split("\n");
    const start = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
    text.focus();
    text.setSelectionRange(start, start + (lines[line - 1] ?? "").length);
    text.scrollTop = (text.scrollHeight / lines.length) * Math.max(line - 6, 0);
  });

  check();
}
