// The page's elements. Texts that come from the coordinator (names of sites, reasons) go in as text, never as markup;
// no function here takes HTML.

const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children);
  return node;
}

const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

const svg = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

// Only what changed is touched: a selection, a focus or a screen reader is not disturbed each second.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, String(value));
  }
}

// A figure of the status: `field` is its path there, data-raw its value, so that a test (or a script) can compare.
function setFigure(node, field, kind, value) {
  setAttribute(node, 'data-field', field);
  setAttribute(node, 'data-kind', kind);
  setAttribute(node, 'data-raw', JSON.stringify(value === undefined ? null : value));
  setText(node, format(kind, value));
}

// The part of `parent` with this name; made when it is first needed.
function part(parent, name, tag = 'span') {
  let node = [...parent.children].find((child) => child.dataset.part === name);
  if (!node) {
    node = el(tag, {'data-part': name, class: name});
    parent.append(node);
  }
  return node;
}

function setPart(parent, name, text, tag = 'span') {
  const node = part(parent, name, tag);
  setText(node, text);
  setAttribute(node, 'hidden', text === '' ? '' : null);
}

// Makes the children of `parent` match `items`, in their order: keeps, makes, moves and removes them by key.
function setItems(parent, items, keyOf, make, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = before.get(key);
    if (!child) {
      child = make(item);
      child.dataset.key = key;
    }
    before.delete(key);
    if (child === at)
      at = at.nextElementSibling;
    else
      parent.insertBefore(child, at);
    update(child, item);
  }
  for (const child of before.values()) child.remove();
}

// A table that becomes a stack of cards on a narrow screen (page.css); the roles keep it a table for screen readers.
// columns: [{key, title, group, figure: row → [field, kind, value]} or {…, draw: (cell, row)}]; the first names the
// row.
function setTable(parent, id, columns, rows, keyOf, empty) {
  let table = byId(id);
  if (!table) {
    table = el('table', {id, role: 'table'}, makeHead(columns), el('tbody', {role: 'rowgroup'}));
    parent.append(
        el('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': `table: ${id}`}, table),
        el('p', {id: `${id}-empty`, class: 'muted'}));
  }
  setText(byId(`${id}-empty`), rows.length ? '' : empty);
  setAttribute(table, 'hidden', rows.length ? null : '');
  const make = () =>
      el('tr', {role: 'row'},
         ...columns.map((column, i) => i === 0 ? el('th', {scope: 'row', role: 'rowheader'}) : el('td', {
                          role: 'cell',
                          'data-label': column.label || column.title,
                          class: isNumeric(column) ? 'figure' : null
                        })));
  setItems(table.tBodies[0], rows, keyOf, make, (line, row) => columns.forEach((column, i) => {
    if (column.draw)
      column.draw(line.cells[i], row);
    else
      setFigure(line.cells[i], ...column.figure(row));
  }));
}

const isNumeric = (column) => column.figure || column.numeric;

function makeHead(columns) {
  const head = el('thead', {role: 'rowgroup'});
  if (columns.some((column) => column.group)) {
    const groups = el('tr', {role: 'row'});
    for (let i = 0; i < columns.length;) {
      let end = i + 1;
      while (end < columns.length && columns[end].group === columns[i].group) ++end;
      groups.append(el('th', {colspan: end - i, scope: 'colgroup', role: 'columnheader'}, columns[i].group || ''));
      i = end;
    }
    head.append(groups);
  }
  head.append(
      el('tr', {role: 'row'},
         ...columns.map(
             (column) =>
                 el('th', {
                   scope: 'col',
                   role: 'columnheader',
                   title: explanation(column.key),
                   class: isNumeric(column) ? 'figure' : null,
                 },
                    column.title))));
  return head;
}
