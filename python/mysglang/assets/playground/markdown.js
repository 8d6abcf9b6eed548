// A small Markdown renderer that makes DOM nodes. What it does not know stays text; markup in the text is text.
//
// Blocks: paragraphs, headings, fenced code, lists, quotes, rules, tables. Inside: code, bold, italic, struck, links.
// Pictures are links, so that no answer can make a browser fetch anything.

import { el } from "./dom.js";

const SAFE_LINK = /^(https?:|mailto:)/i;
// Every repetition is bounded, and no two can take the same characters: a model may write ten thousand marks in a row,
// and the page must not stand still then.
const INLINE = new RegExp(
  [
    /(?<!`)(?<code>`{1,9})(?!`)(?<coded>.{1,1000}?)(?<!`)\k<code>(?!`)/,
    /\*\*(?<bold>[^\s*](?:.{0,400}?[^\s*])?)\*\*/,
    /(?<![\w*])\*(?<italic>[^\s*](?:.{0,400}?[^\s*])?)\*(?![\w*])/,
    /(?<![\w_])_(?<under>[^\s_](?:.{0,400}?[^\s_])?)_(?![\w_])/,
    /~~(?<struck>[^~]{1,400})~~/,
    /!?\[(?<label>[^[\]]{0,300})\]\((?<target>[^()\s]{1,1000})\)/,
    /(?<bare>https?:\/\/[^\s<>()"'`]{1,1000}[^\s<>()"'`.,;:!?])/,
  ]
    .map((pattern) => pattern.source)
    .join("|"),
  "s",
);
const MAX_INLINE = 20_000; // characters of a paragraph; a longer one is plain text

const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const HEADING = /^(#{1,6})\s+(\S.*)$/;
const FENCE = /^(\s*)(```+|~~~+)\s*([\w+-]*)[^`]*$/;
const COLUMNS = /^\|?[\s:]*-[-:\s|]{0,999}$/;
const MAX_DEPTH = 12;

/** The nodes of a text. */
export function markdown(text) {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

function blocks(lines, depth) {
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    let found;
    if (!line.trim()) {
      at += 1;
    } else if ((found = FENCE.exec(line))) {
      const end = lines.findIndex((other, index) => index > at && other.trim().startsWith(found[2]));
      const last = end < 0 ? lines.length : end;
      nodes.push(codeBlock(lines.slice(at + 1, last).join("\n"), found[3]));
      at = last + 1;
    } else if ((found = HEADING.exec(line))) {
      // The page has an h1 and h2 of its own.
      nodes.push(el(`h${Math.min(found[1].length + 2, 6)}`, {}, inline(found[2], depth)));
      at += 1;
    } else if (RULE.test(line)) {
      nodes.push(el("hr"));
      at += 1;
    } else if (/^\s*>/.test(line) && depth < MAX_DEPTH) {
      const size = run(lines, at, (other) => /^\s*>/.test(other));
      const inner = lines.slice(at, at + size).map((other) => other.replace(/^\s*> ?/, ""));
      nodes.push(el("blockquote", {}, blocks(inner, depth + 1)));
      at += size;
    } else if (ITEM.test(line) && depth < MAX_DEPTH) {
      const size = run(lines, at, (other) => ITEM.test(other) || /^\s+\S/.test(other));
      nodes.push(list(lines.slice(at, at + size), depth));
      at += size;
    } else if (line.includes("|") && COLUMNS.test((lines[at + 1] ?? "").trim())) {
      const size = run(lines, at, (other) => other.includes("|"));
      nodes.push(table(lines.slice(at, at + size), depth));
      at += size;
    } else {
      const size = Math.max(run(lines, at, (other) => other.trim() && !startsBlock(other)), 1);
      nodes.push(el("p", {}, inline(lines.slice(at, at + size).join("\n"), depth)));
      at += size;
    }
  }
  return nodes;
}

function startsBlock(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || ITEM.test(line) || /^\s*>/.test(line);
}

/** How many lines from `start` on are alike. */
function run(lines, start, alike) {
  let end = start;
  while (end < lines.length && alike(lines[end])) end += 1;
  return end - start;
}

function list(lines, depth) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const items = [];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= indent.length) items.push([found[3]]);
    else items.at(-1).push(line.slice(Math.min(line.search(/\S/), indent.length + 2)));
  }
  const ordered = /\d/.test(mark);
  const start = ordered ? Number.parseInt(mark, 10) : null;
  const below = (rest) => (rest.length ? blocks(rest, depth + 1) : []);
  const nodes = items.map(([first, ...rest]) => el("li", {}, inline(first, depth), below(rest)));
  return ordered ? el("ol", { start }, nodes) : el("ul", {}, nodes);
}

function table(lines, depth) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (line, tag) => el("tr", {}, cells(line).map((cell) => el(tag, {}, inline(cell, depth))));
  const [head, , ...rest] = lines;
  const body = rest.map((line) => row(line, "td"));
  return el("div", { class: "table" }, el("table", {}, el("thead", {}, row(head, "th")), el("tbody", {}, body)));
}

export function codeBlock(code, language = "") {
  return el("pre", { tabindex: "0", "data-language": language || null }, el("code", {}, code));
}

function inline(text, depth) {
  if (depth >= MAX_DEPTH || text.length > MAX_INLINE) return [text];
  const nodes = [];
  let rest = text;
  while (rest) {
    const found = INLINE.exec(rest);
    if (!found) break;
    nodes.push(rest.slice(0, found.index));
    nodes.push(marked(found, depth + 1));
    rest = rest.slice(found.index + found[0].length);
  }
  nodes.push(rest);
  return nodes.filter((node) => node !== "");
}

function marked(found, depth) {
  const { coded, bold, italic, under, struck, label, target, bare } = found.groups;
  if (coded !== undefined) return el("code", {}, coded);
  if (bold !== undefined) return el("strong", {}, inline(bold, depth));
  if (italic !== undefined) return el("em", {}, inline(italic, depth));
  if (under !== undefined) return el("em", {}, inline(under, depth));
  if (struck !== undefined) return el("s", {}, inline(struck, depth));
  return link(target ?? bare, label ?? bare, found[0]);
}

/** A link to another site, or the text as it was written if the link leads anywhere else. */
function link(target, label, written) {
  if (!SAFE_LINK.test(target)) return written;
  return el("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow" }, label || target);
}
