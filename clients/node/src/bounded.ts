import { Aborted } from "./steps.js";

/** Nothing came in time. */
export class TimeLimit {}

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
      signal?.removeEventListener("abort", aborted);
      outcome();
    };
    work.then(
      (answer) => settle(() => resolve(answer)),
      (why) => settle(() => reject(why)),
    );
    if (signal?.aborted) aborted();
    else signal?.addEventListener("abort", aborted);
  });
}
