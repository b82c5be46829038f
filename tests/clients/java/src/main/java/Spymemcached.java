import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import net.spy.memcached.AddrUtil;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.ConnectionFactoryBuilder.Protocol;
import net.spy.memcached.MemcachedClient;
import net.spy.memcached.auth.AuthDescriptor;
import net.spy.memcached.auth.PlainCallbackHandler;
import net.spy.memcached.transcoders.SerializingTranscoder;

/** A conversation through spymemcached: {@code Spymemcached HOST:PORT text|binary [USER PASSWORD]}. */
public final class Spymemcached {
    private Spymemcached() {}

    /** Ends with code 1 and a message at the first answer that is not memcached's. */
    public static void main(String[] words) throws Exception {
        boolean binary = words[1].equals("binary");
        SerializingTranscoder transcoder = new SerializingTranscoder(Integer.MAX_VALUE);
        transcoder.setCompressionThreshold(Integer.MAX_VALUE);
        ConnectionFactoryBuilder builder = new ConnectionFactoryBuilder()
                .setProtocol(binary ? Protocol.BINARY : Protocol.TEXT)
                .setOpTimeout(10_000)
                .setTranscoder(transcoder);
        if (words.length > 2) {
            builder.setAuthDescriptor(
                    new AuthDescriptor(new String[] {"PLAIN"}, new PlainCallbackHandler(words[2], words[3])));
        }
        MemcachedClient client = new MemcachedClient(builder.build(), AddrUtil.getAddresses(words[0]));
        try {
            storage(client);
            manyAtOnce(client);
            compareAndSwap(client);
            counters(client);
            lifetimes(client);
            sizes(client);
            administration(client);
        } catch (Exception error) {
            error.printStackTrace();
            Expect.fail("spymemcached: " + error);
        }
        client.shutdown();
        System.out.println("spymemcached: as with memcached");
    }

    private static void storage(MemcachedClient client) throws Exception {
        Expect.same("get of nothing", client.get("absent"), null);
        Expect.same("set", client.set("k", 0, "v").get(), true);
        Expect.same("get", client.get("k"), "v");
        for (Object value : new Object[] {7, 1L << 40, true, 1.5, List.of(1, "ü"), new byte[] {0, 13, 10, -1}}) {
            client.set("typed", 0, value).get();
            Expect.same("flags say the type", client.get("typed"), value);
        }
        Expect.same("add of what is there", client.add("k", 0, "x").get(), false);
        Expect.same("add", client.add("added", 0, "x").get(), true);
        Expect.same("replace of nothing", client.replace("absent", 0, "x").get(), false);
        Expect.same("replace", client.replace("k", 0, "x").get(), true);
        Expect.same("append", client.append("k", "y").get(), true);
        Expect.same("prepend", client.prepend("k", "w").get(), true);
        Expect.same("append to nothing", client.append("absent", "y").get(), false);
        Expect.same("get", client.get("k"), "wxy");
        Expect.same("delete", client.delete("k").get(), true);
        Expect.same("delete again", client.delete("k").get(), false);
    }

    private static void manyAtOnce(MemcachedClient client) throws Exception {
        Map<String, Object> values = new HashMap<>();
        for (int index = 0; index < 300; index++) {
            values.put("many:" + index, "value " + index);
            client.set("many:" + index, 0, "value " + index);
        }
        List<String> keys = new ArrayList<>(values.keySet());
        keys.add("absent");
        Expect.same("get of many", client.getBulk(keys), values);
    }

    private static void compareAndSwap(MemcachedClient client) throws Exception {
        client.set("c", 0, "one").get();
        CASValue<Object> held = client.gets("c");
        Expect.same("gets", held.getValue(), "one");
        Expect.same("cas", client.cas("c", held.getCas(), "two"), CASResponse.OK);
        Expect.same("cas with the old unique", client.cas("c", held.getCas(), "three"), CASResponse.EXISTS);
        Expect.same("cas of nothing", client.cas("absent", held.getCas(), "x"), CASResponse.NOT_FOUND);
        Expect.same("get", client.get("c"), "two");
    }

    private static void counters(MemcachedClient client) throws Exception {
        client.set("n", 0, "10").get();
        Expect.same("incr", client.incr("n", 5), 15L);
        Expect.same("decr", client.decr("n", 20), 0L);
        Expect.same("incr of nothing", client.incr("absent", 1), -1L);
        Expect.same("incr with a first value", client.incr("begun", 1, 10), 10L);
        Expect.same("incr with a first value, again", client.incr("begun", 1, 10), 11L);
    }

    private static void lifetimes(MemcachedClient client) throws Exception {
        Expect.same("touch", client.touch("c", 100).get(), true);
        Expect.same("touch of nothing", client.touch("absent", 100).get(), false);
        Expect.same("set for a second", client.set("brief", 1, "x").get(), true);
        Expect.expires(() -> client.get("brief"));
    }

    private static void sizes(MemcachedClient client) throws Exception {
        String large = Expect.large(Expect.LARGE_BYTES);
        Expect.same("set of a large value", client.set("large", 0, large).get(), true);
        Expect.same("a large value comes back", large.equals(client.get("large")), true);
    }

    private static void administration(MemcachedClient client) throws Exception {
        Map<String, String> told = client.getStats().values().iterator().next();
        Expect.same("stats", told.get("threads"), "2");
        String version = client.getVersions().values().iterator().next();
        Expect.same("version " + version, version.matches("\\d+\\.\\d+\\.\\d+.*"), true);
        Expect.same("flush", client.flush().get(), true);
        Expect.same("get after flush", client.get("many:1"), null);
    }
}
