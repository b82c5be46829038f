import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A look-aside application over the cache of docs/clients/java.md, with a thread for each reader: LookAside CACHE
 * DATABASE KEYS READERS SECONDS. It knows no leases. It prints {"reads": N, "hits": N, "stored": N, "refused": N}.
 */
final class LookAside {
    private static final AtomicLong READS = new AtomicLong();
    private static final AtomicLong HITS = new AtomicLong();
    private static final AtomicLong STORED = new AtomicLong();
    private static final AtomicLong REFUSED = new AtomicLong();

    private static Void read(Cache cache, String database, int keys, long endNanos) throws Exception {
        int colon = database.lastIndexOf(':');
        try (var socket = new Socket(database.substring(0, colon), Integer.parseInt(database.substring(colon + 1)))) {
            var rows = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.US_ASCII));
            while (System.nanoTime() < endNanos) {
                String key = "row:" + ThreadLocalRandom.current().nextInt(keys);
                READS.incrementAndGet();
                switch (cache.read(key, () -> query(socket, rows, key)).source()) {
                    case "cache" -> HITS.incrementAndGet();
                    case "database" -> STORED.incrementAndGet();
                    default -> REFUSED.incrementAndGet();
                }
            }
        }
        return null;
    }

    private static String query(Socket socket, BufferedReader rows, String key) {
        try {
            socket.getOutputStream().write((key + "\n").getBytes(StandardCharsets.US_ASCII));
            return rows.readLine();
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    public static void main(String[] words) throws Exception {
        int keys = Integer.parseInt(words[2]);
        int readers = Integer.parseInt(words[3]);
        long endNanos = System.nanoTime() + (long) (Double.parseDouble(words[4]) * 1e9);
        var threads = Executors.newFixedThreadPool(readers);
        try (var cache = new Cache(words[0])) {
            List<Callable<Void>> reading = new ArrayList<>();
            for (int reader = 0; reader < readers; reader++) {
                reading.add(() -> read(cache, words[1], keys, endNanos));
            }
            for (var done : threads.invokeAll(reading)) {
                done.get();
            }
        } finally {
            threads.shutdown();
        }
        System.out.printf("{\"reads\": %d, \"hits\": %d, \"stored\": %d, \"refused\": %d}%n",
            READS.get(), HITS.get(), STORED.get(), REFUSED.get());
    }
}
