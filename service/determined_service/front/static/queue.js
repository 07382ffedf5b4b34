// Rows of the queue that are dragged to another place; the buttons "Up" and "Down" do the same by keyboard.
"use strict";

let dragged = null;

document.addEventListener("dragstart", (event) => {
  dragged = event.target.closest?.("tr[draggable]");
  if (dragged) event.dataTransfer.effectAllowed = "move";
});

function anchor(event) {
  const row = event.target.closest?.("tr[data-anchor]");
  return dragged && row && row !== dragged && row.dataset.pool === dragged.dataset.pool ? row : null;
}

function isAbove(row, event) {
  const box = row.getBoundingClientRect();
  return event.clientY < box.top + box.height / 2;
}

function unmark() {
  for (const row of document.querySelectorAll("tr.above, tr.below")) row.classList.remove("above", "below");
}

document.addEventListener("dragover", (event) => {
  const row = anchor(event);
  unmark();
  if (!row) return;
  event.preventDefault();
  row.classList.add(isAbove(row, event) ? "above" : "below");
});

document.addEventListener("drop", (event) => {
  const row = anchor(event);
  if (!row) return;
  event.preventDefault();
  const form = document.getElementById("drag");
  form.elements.job.value = dragged.dataset.job;
  form.elements.what.value = isAbove(row, event) ? "aheadOf" : "behindOf";
  form.elements.value.value = row.dataset.job;
  form.submit();
});

document.addEventListener("dragend", () => { dragged = null; unmark(); });
