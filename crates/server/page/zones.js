// The editor of lines and zones: draws them over the live picture with mouse, finger or keyboard, and shows their counts.

import { h } from "preact";
import { useState } from "preact/hooks";
import htm from "htm";
import { send, streamPath } from "/page/api.js";

const html = htm.bind(h);

/** The kinds of places: their parameter of the pipeline, and how many points they need. */
const KINDS = {
  line: { parameter: "lines", title: "Line", least: 2, most: 2 },
  zone: { parameter: "zones", title: "Zone", least: 3, most: 64 },
};
/** Steps of the arrow keys as fractions of the picture, without and with Shift. */
const STEP = 0.01;
const LARGE_STEP = 0.05;

const clamp = (value) => Math.min(1, Math.max(0, value));

/** Reads `name:x,y,x,y;name:...`. A place without a name has the name that the element gives it. */
export function parsePlaces(kind, text) {
  const parts = text.split(";").map((part) => part.trim()).filter(Boolean);
  return parts.map((part, idx) => {
    const [before, after] = part.includes(":") ? [part.slice(0, part.indexOf(":")).trim(), part.slice(part.indexOf(":") + 1)] : [`${kind}-${idx + 1}`, part];
    const numbers = after.split(",").map(Number);
    const points = numbers.filter((_, at) => at % 2 === 0).map((x, at) => [x, numbers[2 * at + 1]]);
    return { kind, name: before, points };
  });
}

/** The text that the parameter of the pipeline gets. */
export function placesText(places) {
  const number = (value) => String(Math.round(value * 10000) / 10000);
  return places.map(({ name, points }) => `${name}:${points.flat().map(number).join(",")}`).join(";");
}

/** The lines and zones of a stream; `null` if its pipeline counts nothing. */
export function placesOf(stream, pipeline) {
  const kinds = Object.keys(KINDS).filter((kind) => pipeline?.parameters.some(({ name }) => name === KINDS[kind].parameter));
  if (!kinds.length) return null;
  const text = ({ parameter }) => stream.parameters?.[parameter] ?? pipeline.parameters.find(({ name }) => name === parameter).default ?? "";
  return { kinds, all: kinds.flatMap((kind) => parsePlaces(kind, `${text(KINDS[kind])}`)) };
}

/** State of the drawing of a line or zone; `null`: nothing is drawn. */
export function useDrawing() {
  const [drawing, setDrawing] = useState(null);
  const begin = (kind) => setDrawing({ kind, points: [], cursor: [0.5, 0.5], name: "" });
  const change = (changed) => setDrawing((before) => before && { ...before, ...changed });
  const add = (point) => setDrawing((before) => {
    if (!before || before.points.length >= KINDS[before.kind].most) return before;
    return { ...before, points: [...before.points, point.map(clamp)] };
  });
  const undo = () => setDrawing((before) => before && { ...before, points: before.points.slice(0, -1) });
  const move = (x, y) => setDrawing((before) => before && { ...before, cursor: [clamp(before.cursor[0] + x), clamp(before.cursor[1] + y)] });
  return { drawing, begin, change, add, undo, move, end: () => setDrawing(null) };
}

function Shape({ kind, points, isNew }) {
  const corners = points.map(([x, y]) => `${x * 1000},${y * 1000}`).join(" ");
  const classes = `place ${kind}${isNew ? " new" : ""}`;
  return kind === "zone" && points.length > 2
    ? html`<polygon class=${classes} points=${corners} vector-effect="non-scaling-stroke" />`
    : html`<polyline class=${classes} points=${corners} vector-effect="non-scaling-stroke" />`;
}

/** The lines and zones over the live picture, and the surface on which new ones are drawn. */
export function PlacesLayer({ places, counts, editor }) {
  const { drawing, add, undo, move, end } = editor;
  const label = ({ name, points }) => {
    const count = counts.find((known) => known.name === name);
    const inside = count?.inside === null || count?.inside === undefined ? "" : `, ${count.inside} inside`;
    const text = `${name}: ${count?.in ?? 0} in, ${count?.out ?? 0} out${inside}`;
    const [left, top] = [Math.min(...points.map(([x]) => x)), Math.min(...points.map(([, y]) => y))];
    return html`<span class="place-label" key=${name} style=${`left:${clamp(left) * 100}%;top:${clamp(top) * 100}%`}>${text}</span>`;
  };
  const pointAt = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  };
  const press = (event) => {
    const step = event.shiftKey ? LARGE_STEP : STEP;
    const actions = {
      ArrowLeft: () => move(-step, 0),
      ArrowRight: () => move(step, 0),
      ArrowUp: () => move(0, -step),
      ArrowDown: () => move(0, step),
      Enter: () => add(drawing.cursor),
      " ": () => add(drawing.cursor),
      Backspace: undo,
      Escape: end,
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  };
  const cursor = drawing && html`<span class="cursor" style=${`left:${drawing.cursor[0] * 100}%;top:${drawing.cursor[1] * 100}%`}></span>`;
  return html`<div class="places">
    <svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">
      ${places.map(({ kind, name, points }) => html`<${Shape} key=${`${kind} ${name}`} kind=${kind} points=${points} />`)}
      ${drawing && html`<${Shape} kind=${drawing.kind} points=${drawing.points} isNew />`}
    </svg>
    ${places.map(label)}
    ${drawing && html`<div class="surface" tabindex="0" role="application" aria-label="Drawing surface: arrow keys move the cursor, Enter sets a point, Backspace removes the last point, Escape cancels"
      ref=${(surface) => { if (surface && !drawing.points.length && document.activeElement === document.body) surface.focus(); }}
      onClick=${(event) => add(pointAt(event))} onKeyDown=${press}>
      ${cursor}
      ${drawing.points.map(([x, y], idx) => html`<span class="corner" key=${idx} style=${`left:${x * 100}%;top:${y * 100}%`}></span>`)}
    </div>`}
  </div>`;
}

/** The table of lines and zones with their counts, and the buttons that draw, save and delete them. */
export function PlacesEditor({ stream, places, editor, isOperator, onChanged }) {
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const { drawing, begin, change, undo, end } = editor;
  const save = async (kind, changed) => {
    setBusy(true);
    setError(null);
    const text = placesText(changed.filter((place) => place.kind === kind));
    try {
      await send("PATCH", streamPath(stream.name), { parameters: { [KINDS[kind].parameter]: text } });
      end();
      onChanged();
    } catch (failure) {
      setError(failure.message);
    }
    setBusy(false);
  };
  const name = drawing?.name.trim();
  const isKnown = places.all.some((place) => place.name === name);
  const isWrong = !name || /[:;]/.test(name) || isKnown;
  const rule = drawing && KINDS[drawing.kind];
  const submit = (event) => {
    event.preventDefault();
    save(drawing.kind, [...places.all, { kind: drawing.kind, name, points: drawing.points }]);
  };
  const count = (place) => stream.places.find((known) => known.name === place.name);
  const row = (place) => html`<tr key=${`${place.kind} ${place.name}`} data-place=${place.name}>
    <td>${place.name}</td><td>${place.kind}</td><td class="in">${count(place)?.in ?? 0}</td><td>${count(place)?.out ?? 0}</td>
    <td>${place.kind === "zone" ? count(place)?.inside ?? 0 : ""}</td>
    ${isOperator && html`<td><button type="button" disabled=${isBusy || places.all.length < 2} aria-label=${`Delete ${place.name}`}
      title=${places.all.length < 2 ? "The pipeline needs at least one line or zone" : undefined}
      onClick=${() => save(place.kind, places.all.filter((other) => other !== place))}>Delete</button></td>`}
  </tr>`;
  const needed = drawing && (drawing.points.length < rule.least ? `${rule.least - drawing.points.length} more needed` : "enough");
  return html`<section class="card" id="places" aria-labelledby="places-title">
    <h2 id="places-title">Lines and zones</h2>
    <table>
      <thead><tr><th scope="col">Name</th><th scope="col">Kind</th><th scope="col">In</th><th scope="col">Out</th><th scope="col">Inside</th>${isOperator && html`<td></td>`}</tr></thead>
      <tbody>${places.all.map(row)}</tbody>
    </table>
    ${isOperator && !drawing && html`<div class="row">${places.kinds.map((kind) => html`<button key=${kind} id=${`draw-${kind}`} onClick=${() => begin(kind)}>Draw a ${kind}</button>`)}</div>`}
    ${drawing && html`<form onSubmit=${submit}>
      <p role="status">Click the corners of the ${drawing.kind} in the picture, or move the cursor with the arrow keys and press Enter. Points: ${drawing.points.length}, ${needed}.</p>
      <label><span>Name</span><input name="place-name" value=${drawing.name} onInput=${(event) => change({ name: event.target.value })} required maxlength="60" autocomplete="off" />
        <span class="facts">${isKnown ? "This name is taken" : "Without : and ;"}</span></label>
      <div class="row">
        <button class="main" id="save-place" type="submit" disabled=${isBusy || isWrong || drawing.points.length < rule.least}>Save</button>
        <button type="button" onClick=${undo} disabled=${!drawing.points.length}>Remove the last point</button>
        <button type="button" onClick=${end}>Cancel</button>
      </div>
    </form>`}
    <div class="error" role="alert">${error}</div>
  </section>`;
}
