// Requests to the server, and hooks that keep their answers up to date.

import { useEffect, useRef, useState } from "preact/hooks";

/** Sends a request. Throws an error with the text of the server. */
export async function send(method, path, body) {
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer.");
  }
  const text = await answer.text();
  let content = null;
  try {
    content = text ? JSON.parse(text) : null;
  } catch {
    content = null;
  }
  if (!answer.ok) {
    const error = new Error(content?.error?.message ?? `The server answered ${answer.status}.`);
    error.status = answer.status;
    throw error;
  }
  return content;
}

/** The path of a stream, or of something below it. */
export const streamPath = (name, rest = "") => `/api/streams/${encodeURIComponent(name)}${rest}`;

/** Polls an address while the page is visible. Returns [content, error, poll now]. */
export function usePolled(path, milliseconds) {
  const [content, setContent] = useState(null);
  const [error, setError] = useState(null);
  const poll = useRef(() => {});
  useEffect(() => {
    let timer = null;
    let isEnded = false;
    const once = async () => {
      clearTimeout(timer);
      if (!document.hidden) {
        try {
          const answer = await send("GET", path);
          if (isEnded) return;
          setContent(answer);
          setError(null);
        } catch (failure) {
          if (isEnded) return;
          setError(failure);
        }
      }
      clearTimeout(timer);
      if (!isEnded) timer = setTimeout(once, milliseconds);
    };
    poll.current = once;
    once();
    document.addEventListener("visibilitychange", once);
    return () => {
      isEnded = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", once);
    };
  }, [path, milliseconds]);
  return [content, error, () => poll.current()];
}

/** Receives server-sent events while the page is visible: `handlers` by name of the event. */
export function useEvents(path, handlers) {
  const current = useRef(handlers);
  current.current = handlers;
  useEffect(() => {
    let source = null;
    const connect = () => {
      source?.close();
      source = null;
      if (document.hidden) return;
      source = new EventSource(path);
      for (const name of Object.keys(current.current)) {
        source.addEventListener(name, (event) => current.current[name](JSON.parse(event.data)));
      }
    };
    connect();
    document.addEventListener("visibilitychange", connect);
    return () => {
      source?.close();
      document.removeEventListener("visibilitychange", connect);
    };
  }, [path]);
}
