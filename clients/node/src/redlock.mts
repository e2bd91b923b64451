// Entry point for `import`, with the default export. `import` and `require` give the same classes.

import { Redlock } from "./redlock.js";

export {
  ExecutionError,
  type ExecutionResult,
  type ExecutionStats,
  Lock,
  Redlock,
  type RedlockAbortSignal,
  ResourceLockedError,
  type Settings,
} from "./redlock.js";
export default Redlock;
