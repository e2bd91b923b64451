/** An error about a lock. */
export class LockError extends Error {
  /** The key of the lock. */
  readonly key: string | undefined;

  constructor(message: string, key?: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.key = key;
  }
}

/** Somebody else holds the lock, and the wait timeout is over. */
export class ResourceLockedError extends LockError {}

/** The hold is lost: its lease ended, or somebody took it away. */
export class NotHeldError extends LockError {}

/** Waiting would close a cycle of tokens that wait for each other. Release what you hold, then retry. */
export class DeadlockError extends LockError {}

/** The server may have forgotten holds, and grants nothing new yet. Retry in `left` milliseconds. */
export class GraceError extends LockError {
  left = 1000;
}

/** Too many clients wait already. Retry later. */
export class QueueFullError extends LockError {}

/** The lock was granted, but each answer took longer than its lease: the ttl is too short. */
export class LateError extends LockError {}

/** The server did not answer. What was asked may have been done. */
export class NoAnswerError extends LockError {}

/** Too few masters answered, or could grant. It is unknown whether somebody else holds the lock. */
export class NoQuorumError extends LockError {}

/** The error word of a server's reply, or "". Other errors of clients do not begin with a word in capitals. */
export function word(answer: unknown): string {
  return (answer instanceof Error && /^[A-Z]{2,}(?= )/.exec(answer.message)?.[0]) || "";
}

/** What an error word of ACQUIRE means; undefined for one that is not about locks. */
export function refusal(answer: unknown, key: string): LockError | undefined {
  const text = (answer as Error).message;
  switch (word(answer)) {
    case "DEADLOCK":
      return new DeadlockError(text, key, answer);
    case "QUEUEFULL":
      return new QueueFullError(text, key, answer);
    case "GRACE": {
      const grace = new GraceError(text, key, answer);
      const left = /^GRACE (\d+)/.exec(text)?.[1];
      if (left !== undefined) grace.left = Number(left);
      return grace;
    }
    default:
      return undefined;
  }
}
