// The events of the locks of this process, published on channels of node:diagnostics_channel.

import { type Channel, channel } from "node:diagnostics_channel";

/** A lock was acquired. Published on `dlock.acquired`. Times are in ms. */
export interface Acquired {
  readonly key: string;
  readonly fence: number | null;
  readonly waited: number;
}

/** An acquisition has failed. Published on `dlock.not_acquired`. */
export interface NotAcquired {
  readonly key: string;
  readonly waited: number;
  /** Undefined if another client has the lock. */
  readonly error: unknown;
}

/** A hold has ended: by its release, on `dlock.released`, or by its loss, on `dlock.lost`. */
export interface Ended {
  readonly key: string;
  readonly fence: number | null;
  readonly held: number;
  /** The loss. */
  readonly error: unknown;
}

export const events = {
  acquired: channel("dlock.acquired"),
  notAcquired: channel("dlock.not_acquired"),
  released: channel("dlock.released"),
  lost: channel("dlock.lost"),
} as const;

/** Publishes an event if the channel has subscribers. */
export function publish<T extends object>(channel: Channel, event: () => T): void {
  if (channel.hasSubscribers) channel.publish(event());
}
