/** Locks on a Redis or Valkey server with the dlock module, through a client of ioredis or node-redis. */

export {
  DeadlockError,
  GraceError,
  LateError,
  LockError,
  NoAnswerError,
  NoQuorumError,
  NotDurableError,
  NotHeldError,
  QueueFullError,
  ResourceLockedError,
  StaleFenceError,
} from "./errors.js";
export { fenced } from "./fenced.js";
export { Leader } from "./leader.js";
export type {
  Client,
  IoredisClient,
  NodeRedisClient,
  NodeRedisCluster,
  NodeRedisSentinel,
} from "./links.js";
export { type AcquireOptions, type Durable, Hold, Lock, type LockOptions } from "./lock.js";
export { Operator } from "./operator.js";
export type { Key } from "./protocol.js";
export type { Holder, Incident, Inspection, Listed, Waiting } from "./reading.js";
export { Quorum, type QuorumOptions } from "./service.js";
export { Holds, Locks, lockAll, lockPath } from "./several.js";
