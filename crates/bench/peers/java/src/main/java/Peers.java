import io.lettuce.core.RedisClient;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Measures the locks of Redisson, and dlock by its commands over Lettuce; called by peers.py. */
public final class Peers {
    private static final int TTL_S = 30;
    private static final double WARM_UP_S = 1;

    /** Acquires a lock, waiting for it, and returns the action that releases it. */
    interface Library {
        Runnable acquire(String key) throws Exception;
    }

    public static void main(String[] words) throws Exception {
        Map<String, String> options = new LinkedHashMap<>();
        for (int at = 0; at < words.length; at += 2) {
            options.put(words[at], words[at + 1]);
        }
        String address = "redis://" + options.get("-addr");
        double seconds = Double.parseDouble(options.get("-seconds"));
        Config config = new Config();
        config.useSingleServer().setAddress(address).setConnectionPoolSize(100).setConnectionMinimumIdleSize(40);
        RedissonClient redisson = Redisson.create(config);
        RedisClient lettuce = RedisClient.create(address);
        Dlock dlock = new Dlock(lettuce);
        Map<String, Library> libraries = new LinkedHashMap<>();
        libraries.put("Redisson RLock", key -> held(redisson.getLock(key)));
        libraries.put("Redisson FairLock", key -> held(redisson.getFairLock(key)));
        libraries.put("Redisson FencedLock", key -> held(redisson.getFencedLock(key)));
        libraries.put("dlock QUEUE over Lettuce", dlock::acquire);
        for (Library library : libraries.values()) {
            run(library, 8, 0, true, WARM_UP_S);
        }
        StatefulRedisConnection<String, String> admin = lettuce.connect();
        for (String load : options.get("-loads").split(",")) {
            String[] parts = load.split("-");
            int callers = Integer.parseInt(parts[1]);
            int hold = parts.length > 2 ? Integer.parseInt(parts[2].replace("ms", "")) : 0;
            for (Map.Entry<String, Library> library : libraries.entrySet()) {
                admin.sync().flushall();
                run(library.getValue(), callers, 0, false, 0.05);
                long before = processed(admin);
                long began = System.nanoTime();
                List<long[]> waits = run(library.getValue(), callers, hold, parts[0].equals("contend"), seconds);
                double took = (System.nanoTime() - began) / 1e9;
                print(library.getKey(), load, waits, took, processed(admin) - before);
            }
        }
        System.exit(0);
    }

    private static Runnable held(RLock lock) {
        lock.lock(TTL_S, TimeUnit.SECONDS);
        return lock::unlock;
    }

    /** Returns the waits of each caller, in ns. */
    private static List<long[]> run(Library library, int callers, int holdMs, boolean same, double seconds)
            throws Exception {
        CountDownLatch start = new CountDownLatch(1);
        List<CompletableFuture<long[]>> results = new ArrayList<>();
        for (int number = 0; number < callers; number++) {
            String key = same ? "bench" : "bench:" + number;
            CompletableFuture<long[]> result = new CompletableFuture<>();
            results.add(result);
            new Thread(() -> {
                try {
                    start.await();
                    result.complete(call(library, key, holdMs, seconds));
                } catch (Throwable why) {
                    result.completeExceptionally(why);
                }
            }).start();
        }
        start.countDown();
        List<long[]> waits = new ArrayList<>();
        for (CompletableFuture<long[]> result : results) {
            waits.add(result.get());
        }
        return waits;
    }

    private static long[] call(Library library, String key, int holdMs, double seconds) throws Exception {
        long[] waits = new long[1024];
        int count = 0;
        long end = System.nanoTime() + (long) (seconds * 1e9);
        for (long asked = System.nanoTime(); asked < end; asked = System.nanoTime()) {
            Runnable release = library.acquire(key);
            if (count == waits.length) {
                waits = Arrays.copyOf(waits, 2 * count);
            }
            waits[count++] = System.nanoTime() - asked;
            if (holdMs > 0) {
                Thread.sleep(holdMs);
            }
            release.run();
        }
        return Arrays.copyOf(waits, count);
    }

    private static long processed(StatefulRedisConnection<String, String> admin) {
        Matcher found = Pattern.compile("total_commands_processed:(\\d+)").matcher(admin.sync().info("stats"));
        found.find();
        return Long.parseLong(found.group(1));
    }

    private static void print(String library, String load, List<long[]> waits, double took, long commands) {
        long[] all = waits.stream().flatMapToLong(Arrays::stream).sorted().toArray();
        double squares = waits.stream().mapToDouble(caller -> (double) caller.length * caller.length).sum();
        double jain = (double) all.length * all.length / waits.size() / squares;
        String version = library.startsWith("Redisson") ? Redisson.class.getPackage().getImplementationVersion() : "";
        System.out.printf(
                "{\"library\": \"%s\", \"version\": \"%s\", \"load\": \"%s\", \"grants_per_s\": %f, \"p50_ms\": %f, "
                        + "\"p99_ms\": %f, \"max_ms\": %f, \"jain\": %f, \"commands_per_grant\": %f}%n",
                library, version == null ? "" : version, load, all.length / took, at(all, 0.5), at(all, 0.99),
                at(all, 1), jain, (double) commands / all.length);
    }

    private static double at(long[] sorted, double share) {
        return sorted[(int) (share * (sorted.length - 1))] / 1e6;
    }

    /** dlock by its commands, as docs/writing-a-client.md says: a wait holds from its message on. */
    private static final class Dlock {
        private static final String CHANNEL = "peers";
        private static final String TTL_MS = String.valueOf(TTL_S * 1000);
        private static final String QUEUE_MS = "30000";

        private final StatefulRedisConnection<String, String> connection;
        private final Map<String, CompletableFuture<Void>> waits = new ConcurrentHashMap<>();

        Dlock(RedisClient client) {
            connection = client.connect();
            var listener = client.connectPubSub();
            listener.addListener(new RedisPubSubAdapter<>() {
                @Override
                public void message(String channel, String text) {
                    String[] parts = text.split(" ");
                    CompletableFuture<Void> wait = waits.remove(parts[0]);
                    if (wait != null && parts.length == 3 && parts[1].equals("granted")) {
                        wait.complete(null);
                    }
                }
            });
            listener.sync().subscribe(CHANNEL);
        }

        Runnable acquire(String key) throws Exception {
            String token = UUID.randomUUID().toString();
            String message = UUID.randomUUID() + ".1";
            CompletableFuture<Void> wait = new CompletableFuture<>();
            waits.put(message, wait);
            Long fence = send("DLOCK.ACQUIRE", key, token, TTL_MS, "QUEUE", QUEUE_MS, "NOTIFY", CHANNEL, message).get();
            if (fence == null) {
                wait.get();
                // The claim of the full lease, in the background.
                send("DLOCK.EXTEND", key, token, TTL_MS);
            } else {
                waits.remove(message);
            }
            return () -> {
                if (send("DLOCK.RELEASE", key, token).join() != 1) {
                    throw new IllegalStateException("the hold was lost");
                }
            };
        }

        private CompletableFuture<Long> send(String name, String... words) {
            CommandArgs<String, String> args = new CommandArgs<>(StringCodec.UTF8);
            for (String word : words) {
                args.add(word);
            }
            ProtocolKeyword command = new Keyword(name);
            return connection.async().dispatch(command, new IntegerOutput<>(StringCodec.UTF8), args)
                    .toCompletableFuture();
        }
    }

    private record Keyword(String name) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return name.getBytes(StandardCharsets.US_ASCII);
        }

        @Override
        public String toString() {
            return name;
        }
    }
}
