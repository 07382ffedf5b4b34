// A terminal beside a task: xterm.js draws it, and a websocket carries the frames of `det attach` (wire/shells.py).
"use strict";

const HELLO = 1, INPUT = 2, RESIZE = 3, OUTPUT = 5, EXIT = 6, REFUSED = 7, ERRORS = 8;
const PIECE = 16384;
const MOST_WAITING = 1 << 20;

// The library writes its styles as text, which the policy of these pages forbids; the object model may set them.
const createElement = Document.prototype.createElement;
Document.prototype.createElement = function (name, ...more) {
  if (name !== "style") return createElement.call(this, name, ...more);
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  return Object.defineProperty(createElement.call(this, "template"), "textContent", { set(text) { sheet.replaceSync(text); } });
};
const setAttribute = Element.prototype.setAttribute;
Element.prototype.setAttribute = function (name, value) {
  if (name === "style") this.style.cssText = value; else setAttribute.call(this, name, value);
};

const form = document.getElementById("terminal-form");
const said = document.getElementById("terminal-said");
const reopen = document.getElementById("terminal-again");
const reader = document.getElementById("terminal-reader");
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
const term = new Terminal({ cursorBlink: !calm, scrollback: 5000, minimumContrastRatio: 4.5 });
const fit = new FitAddon.FitAddon();
let socket = null;

// What a program prints reaches neither titles (0 to 2), links (8) nor the clipboard (52).
for (const kind of [0, 1, 2, 8, 52]) term.parser.registerOscHandler(kind, () => true);
term.loadAddon(fit);
term.open(document.getElementById("terminal"));
fit.fit();
term.attachCustomKeyEventHandler((event) => {
  if (event.key !== "F6" || !event.shiftKey) return true;
  if (event.type === "keydown") reader.focus();
  event.preventDefault();
  return false;
});

const encoder = new TextEncoder();

function send(kind, content) {
  if (socket?.readyState !== WebSocket.OPEN) return;
  const frame = new Uint8Array(5 + content.length);
  frame[0] = kind;
  new DataView(frame.buffer).setUint32(1, content.length);
  frame.set(content, 5);
  socket.send(frame);
}

const sendJson = (kind, content) => send(kind, encoder.encode(JSON.stringify(content)));
const size = () => ({ rows: term.rows, columns: term.cols });

function type(bytes) {
  if (socket?.readyState !== WebSocket.OPEN) return;
  if (socket.bufferedAmount + bytes.length > MOST_WAITING) {
    say("What you typed or pasted last was left out: the task has not read what came before, or it is more than 1 MiB.");
    return;
  }
  for (let at = 0; at < bytes.length; at += PIECE) send(INPUT, bytes.subarray(at, at + PIECE));
}

term.onData((text) => type(encoder.encode(text)));
term.onBinary((text) => type(Uint8Array.from(text, (one) => one.charCodeAt(0))));
term.onResize(() => sendJson(RESIZE, size()));
new ResizeObserver(() => fit.fit()).observe(document.getElementById("terminal"));
reader.addEventListener("change", () => { term.options.screenReaderMode = reader.checked; });
addEventListener("pagehide", () => socket?.close());

function say(words) { said.textContent = words; }

function over(words) {
  socket = null;
  say(words);
  reopen.hidden = false;
}

async function fetched(address, options) {
  // The JSON of the answer; without it, in words why not.
  let answer;
  try { answer = await fetch(address, options); } catch { return { said: "The service does not answer. What ran in this terminal has ended; open it again when the service is back." }; }
  try { return await answer.json(); } catch { return { said: "Your login has ended: load this page again to log in." }; }
}

// Whole frames out of bytes as they come.
function* frames(buffer) {
  while (buffer.bytes.length >= 5) {
    const length = new DataView(buffer.bytes.buffer, buffer.bytes.byteOffset).getUint32(1);
    if (buffer.bytes.length < 5 + length) return;
    yield [buffer.bytes[0], buffer.bytes.subarray(5, 5 + length)];
    buffer.bytes = buffer.bytes.subarray(5 + length);
  }
}

async function open(isSecond = false) {
  reopen.hidden = true;
  say("Opening…");
  const fields = new URLSearchParams(new FormData(form));
  // Its supervisor may have closed the door at this moment: it is asked once more.
  if (isSecond) fields.set("again", "1");
  const way = await fetched(form.action, { method: "POST", body: fields });
  if (!way.address) return over(way.said);
  document.getElementById("terminal-where").textContent = ` on ${way.where}`;
  const decoder = new TextDecoder();
  const buffer = { bytes: new Uint8Array(0) };
  let last = "", hasBegun = false;
  const own = new WebSocket(way.address, way.protocols);
  socket = own;
  own.binaryType = "arraybuffer";
  own.onopen = () => sendJson(HELLO, { secret: way.secret, tty: true, banner: true, term: "xterm-256color", ...size() });
  own.onmessage = (event) => {
    const bytes = new Uint8Array(event.data);
    const joined = new Uint8Array(buffer.bytes.length + bytes.length);
    joined.set(buffer.bytes);
    joined.set(bytes, buffer.bytes.length);
    buffer.bytes = joined;
    for (const [kind, content] of frames(buffer)) {
      if (kind === OUTPUT || kind === ERRORS) {
        if (!hasBegun) { hasBegun = true; say("Connected."); term.focus(); }
        term.write(content);
      } else if (kind === EXIT) last = `The program has ended with exit code ${JSON.parse(decoder.decode(content)).code}.`;
      else if (kind === REFUSED) last = decoder.decode(content);
    }
    // The proxy sends more when this is shown.
    term.write("", () => { if (own.readyState === WebSocket.OPEN) own.send(String(bytes.length)); });
  };
  own.onclose = async () => {
    if (socket !== own) return;
    socket = null;
    if (last) return over(last);
    if (!hasBegun && !isSecond) return open(true);
    over((await fetched(`${form.action}/state`)).said);
  };
}

form.addEventListener("submit", (event) => { event.preventDefault(); term.reset(); open(); });
open();
