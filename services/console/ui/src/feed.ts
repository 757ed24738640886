// What `turnbuckle console` answers: the stream of messages, found again whenever it ends, and single questions.
import { decode, Frames, type Message } from "./decode";

const SILENCE_MS = 8_000;
const HIDDEN_MS = 10_000; // a hidden page asks for nothing
const AGAIN_MS = [300, 1_000, 2_000];
export type Link = "connecting" | "live" | "no-bus" | "lost" | "full" | "refused";
type Heard = "nothing" | "something" | "refused";

let loggedIn = () => {};

/** The key of an address such as `/#key=...`, which browsers do not send; it is taken out of the address at once. */
export function takeKey(): string {
  if (!location.hash.startsWith("#key=")) return "";
  const given = new URLSearchParams(location.hash.slice(1)).get("key") ?? "";
  history.replaceState(null, "", location.pathname);
  return given;
}

/** Exchange the key for a cookie; returns what is wrong, or nothing. */
export async function logIn(key: string): Promise<string> {
  let status: number;
  try {
    status = (await fetch("/login", { method: "POST", headers: { Authorization: `Bearer ${key}` } })).status;
  } catch {
    return "The console is out of reach.";
  }
  if (status === 204) loggedIn();
  return status === 204 ? "" : status === 429 ? "Too many wrong keys: wait a minute." : "That is not its key.";
}

/** Ask once; throws where there is no answer. */
export async function ask(path: string, query: Record<string, string>): Promise<Message> {
  const response = await fetch(`${path}?${new URLSearchParams(query)}`);
  if (!response.ok) throw new Error(`status ${response.status}`);
  return decode(new Uint8Array(await response.arrayBuffer()));
}

export async function follow(onMessage: (message: Message) => void, onLink: (link: Link) => void): Promise<never> {
  for (let attempt = 0; ; attempt += 1) {
    await untilShown();
    const keyGiven = new Promise<void>((resolve) => (loggedIn = () => resolve()));
    const heard = await readOnce(onMessage, onLink);
    if (heard === "something") attempt = 0;
    if (heard === "refused") await keyGiven;
    else await new Promise((resolve) => setTimeout(resolve, AGAIN_MS[Math.min(attempt, AGAIN_MS.length - 1)]));
  }
}

function untilShown(): Promise<void> {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    const changed = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", changed);
      resolve();
    };
    document.addEventListener("visibilitychange", changed);
  });
}

async function readOnce(onMessage: (message: Message) => void, onLink: (link: Link) => void): Promise<Heard> {
  const abort = new AbortController();
  let heard: Heard = "nothing";
  let [silence, hidden] = [0, 0];
  const watch = () => {
    clearTimeout(silence);
    silence = setTimeout(() => abort.abort(), SILENCE_MS);
  };
  const rest = () => {
    clearTimeout(hidden);
    if (document.hidden) hidden = setTimeout(() => abort.abort(), HIDDEN_MS);
  };
  watch();
  document.addEventListener("visibilitychange", rest);
  try {
    const response = await fetch("/stream", { signal: abort.signal });
    if (response.status === 401 || response.status === 429) {
      onLink("refused");
      return "refused";
    }
    if (!response.ok || response.body === null) {
      onLink(response.status === 503 ? "full" : "lost");
      return heard;
    }
    const reader = response.body.getReader();
    const frames = new Frames();
    onMessage({ type: "console.Joined" }); // what is known may be old: the hub tells it all again
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Error("the stream has ended");
      heard = "something";
      watch();
      for (const data of frames.push(value)) take(data, onMessage, onLink);
    }
  } catch {
    onLink(document.hidden ? "connecting" : "lost");
    return heard;
  } finally {
    clearTimeout(silence);
    clearTimeout(hidden);
    document.removeEventListener("visibilitychange", rest);
    abort.abort();
  }
}

function take(data: Uint8Array, onMessage: (message: Message) => void, onLink: (link: Link) => void): void {
  let message: Message;
  try {
    message = decode(data);
  } catch {
    return; // not one of ours: anyone may publish anything
  }
  if (message.type === "console.Beat") onLink(message.connected === true ? "live" : "no-bus");
  onMessage(message);
}
