import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import net.rubyeye.xmemcached.GetsResponse;
import net.rubyeye.xmemcached.MemcachedClient;
import net.rubyeye.xmemcached.XMemcachedClientBuilder;
import net.rubyeye.xmemcached.command.BinaryCommandFactory;
import net.rubyeye.xmemcached.utils.AddrUtil;

/** A conversation through xmemcached: {@code Xmemcached HOST:PORT text|binary}. */
public final class Xmemcached {
    private Xmemcached() {}

    /** Ends with code 1 and a message at the first answer that is not memcached's. */
    public static void main(String[] words) throws Exception {
        XMemcachedClientBuilder builder = new XMemcachedClientBuilder(AddrUtil.getAddresses(words[0]));
        if (words[1].equals("binary")) {
            builder.setCommandFactory(new BinaryCommandFactory());
        }
        MemcachedClient client = builder.build();
        client.setOpTimeout(10_000);
        try {
            storage(client);
            manyAtOnce(client);
            compareAndSwap(client);
            counters(client);
            lifetimes(client);
            administration(client);
        } catch (Exception error) {
            error.printStackTrace();
            Expect.fail("xmemcached: " + error);
        }
        client.shutdown();
        System.out.println("xmemcached: as with memcached");
    }

    private static void storage(MemcachedClient client) throws Exception {
        Expect.same("get of nothing", client.get("absent"), null);
        Expect.same("set", client.set("k", 0, "v"), true);
        Expect.same("get", client.get("k"), "v");
        for (Object value : new Object[] {7, 1L << 40, true, 1.5, List.of(1, "ü"), new byte[] {0, 13, 10, -1}}) {
            client.set("typed", 0, value);
            Expect.same("flags say the type", client.get("typed"), value);
        }
        Expect.same("add of what is there", client.add("k", 0, "x"), false);
        Expect.same("add", client.add("added", 0, "x"), true);
        Expect.same("replace of nothing", client.replace("absent", 0, "x"), false);
        Expect.same("replace", client.replace("k", 0, "x"), true);
        Expect.same("append", client.append("k", "y"), true);
        Expect.same("prepend", client.prepend("k", "w"), true);
        Expect.same("append to nothing", client.append("absent", "y"), false);
        Expect.same("get", client.get("k"), "wxy");
        Expect.same("delete", client.delete("k"), true);
        Expect.same("delete again", client.delete("k"), false);
        String large = Expect.large(Expect.LARGE_BYTES);
        client.getTranscoder().setCompressionThreshold(Integer.MAX_VALUE);
        Expect.same("set of a large value", client.set("large", 0, large), true);
        Expect.same("a large value comes back", large.equals(client.get("large")), true);
    }

    private static void manyAtOnce(MemcachedClient client) throws Exception {
        Map<String, Object> values = new HashMap<>();
        for (int index = 0; index < 300; index++) {
            values.put("many:" + index, "value " + index);
            client.set("many:" + index, 0, "value " + index);
        }
        List<String> keys = new ArrayList<>(values.keySet());
        keys.add("absent");
        Expect.same("get of many", client.get(keys), values);
    }

    private static void compareAndSwap(MemcachedClient client) throws Exception {
        client.set("c", 0, "one");
        GetsResponse<String> held = client.gets("c");
        Expect.same("gets", held.getValue(), "one");
        Expect.same("cas", client.cas("c", 0, "two", held.getCas()), true);
        Expect.same("cas with the old unique", client.cas("c", 0, "three", held.getCas()), false);
        Expect.same("get", client.get("c"), "two");
    }

    private static void counters(MemcachedClient client) throws Exception {
        Expect.same("incr with a first value", client.incr("begun", 1, 10), 10L);
        Expect.same("incr", client.incr("begun", 5, 10), 15L);
        Expect.same("decr", client.decr("begun", 20, 10), 0L);
    }

    private static void lifetimes(MemcachedClient client) throws Exception {
        Expect.same("touch", client.touch("c", 100), true);
        Expect.same("touch of nothing", client.touch("absent", 100), false);
        Expect.same("set for a second", client.set("brief", 1, "x"), true);
        Expect.expires(() -> client.get("brief"));
    }

    private static void administration(MemcachedClient client) throws Exception {
        Map<String, String> told = client.getStats().values().iterator().next();
        Expect.same("stats", told.get("threads"), "2");
        String version = client.getVersions().values().iterator().next();
        Expect.same("version " + version, version.matches("\\d+\\.\\d+\\.\\d+.*"), true);
        client.flushAll();
        Expect.same("get after flush", client.get("many:1"), null);
    }
}
