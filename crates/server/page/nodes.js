// The page of the nodes: their load, their streams, and buttons that drain a node and move a stream.

import { h } from "preact";
import { useState } from "preact/hooks";
import htm from "htm";
import { send, streamPath, usePolled } from "/page/api.js";

const html = htm.bind(h);

function Node({ node, others, isOperator, act }) {
  const isDrained = node.state === "draining";
  const drain = () => act("PUT", `/api/nodes/${encodeURIComponent(node.name)}/drain`, { drain: !isDrained });
  const move = (stream) => (event) => event.target.value && act("PUT", streamPath(stream, "/node"), { node: event.target.value });
  const labels = Object.entries(node.labels).map(([name, value]) => `${name}=${value}`).join(", ");
  const canDrain = isOperator && (isDrained || node.state === "present");
  return html`<section class="card" data-node=${node.name} aria-label=${`Node ${node.name}`}>
    <div class="row"><h2>${node.name}</h2><span class=${`state ${node.state}`}>${node.state}</span></div>
    <p class="facts">${node.assigned.toFixed(0)} of ${node.capacity.toFixed(0)} fps assigned, ${node.fps.toFixed(1)} fps processed,
      ${(100 * node.processor).toFixed(0)} % of the processors${node.devices.length > 0 && `, ${node.devices.join(" ")}`}${labels && `, ${labels}`}${node.is_planner ? ", decides for all nodes" : ""}</p>
    <meter min="0" max="1" value=${node.capacity > 0 ? Math.min(1, node.assigned / node.capacity) : 0} aria-label="Assigned part of the capacity" />
    <ul>${node.streams.map((stream) => html`<li key=${stream} data-stream=${stream}>
      <a href=${`#/streams/${encodeURIComponent(stream)}`}>${stream}</a>
      ${isOperator && others.length > 0 && html` <select aria-label=${`Move ${stream} to`} value="" onChange=${move(stream)}>
        <option value="">move to …</option>${others.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select>`}
    </li>`)}</ul>
    ${canDrain && html`<button class="drain" onClick=${drain}>${isDrained ? "End the drain" : "Drain"}</button>`}
  </section>`;
}

export function NodesPage({ server }) {
  const [list, error, poll] = usePolled("/api/nodes", 1000);
  const [failure, setFailure] = useState(null);
  const act = async (method, path, body) => {
    setFailure(null);
    try {
      await send(method, path, body);
    } catch (reason) {
      setFailure(reason.message);
    }
    poll();
  };
  const nodes = list?.nodes ?? [];
  const present = nodes.filter(({ state }) => state === "present").map(({ name }) => name);
  return html`<h1>Nodes</h1>
    ${error && html`<p class="error" role="alert">${error.message}</p>`}
    <p class="error" role="alert">${failure}</p>
    ${nodes.map((node) => html`<${Node} key=${node.name} node=${node} others=${present.filter((name) => name !== node.name)}
      isOperator=${server.role === "operator"} act=${act} />`)}`;
}
