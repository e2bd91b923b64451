import { Lock } from "dlock";
import { Redis } from "ioredis";
const redis = new Redis(11971);
const lock = new Lock(redis, "invoice:42");
await lock.using(async (hold) => {
    console.log("held, with the fence", hold.fence);
});
await redis.quit();
