/** Locks on a Redis or Valkey server with the dlock module, through a client of ioredis or node-redis. */

export {
  DeadlockError,
  GraceError,
  LateError,
  LockError,
  NoAnswerError,
  NoQuorumError,
  NotHeldError,
  QueueFullError,
  ResourceLockedError,
} from "./errors.js";
export type { Client, IoredisClient, NodeRedisClient } from "./links.js";
export { type AcquireOptions, Hold, Lock, type LockOptions } from "./lock.js";
export type { Key } from "./protocol.js";
export { Quorum, type QuorumOptions } from "./service.js";
