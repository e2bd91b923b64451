import { Aborted } from "./steps.js";

/** Nothing came in time. */
export class TimeLimit {}

/** All that wait for one signal share a listener: Node warns of more than ten. */
class Waiting extends Set<() => void> {
  readonly tell = () => {
    for (const aborted of this) aborted();
  };
}

const waiting = new WeakMap<AbortSignal, Waiting>();

function listen(signal: AbortSignal, aborted: () => void): void {
  const all = waiting.get(signal) ?? new Waiting();
  waiting.set(signal, all);
  if (all.size === 0) signal.addEventListener("abort", all.tell);
  all.add(aborted);
}

function forget(signal: AbortSignal, aborted: () => void): void {
  const all = waiting.get(signal);
  if (all?.delete(aborted) && all.size === 0) signal.removeEventListener("abort", all.tell);
}

/** What comes of `work`, for which this waits at most `ms`, and not longer than until `signal` is aborted. */
export function bounded<T>(work: Promise<T>, ms: number, signal?: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    // After a blocked event loop the timer comes first: an answer that has arrived meanwhile is read before
    // it counts.
    const timer = setTimeout(() => setImmediate(late), Math.min(Math.max(ms, 0), 2 ** 31 - 1));
    const late = () => settle(() => reject(new TimeLimit()));
    const aborted = () => settle(() => reject(new Aborted(signal?.reason)));
    const settle = (outcome: () => void) => {
      clearTimeout(timer);
      if (signal) forget(signal, aborted);
      outcome();
    };
    work.then(
      (answer) => settle(() => resolve(answer)),
      (why) => settle(() => reject(why)),
    );
    if (signal?.aborted) aborted();
    else if (signal) listen(signal, aborted);
  });
}
