// Prints where spymemcached's ketama locator itself puts keys: the vectors of tests/other_clients.rs. No server is
// needed.
//
//     mvn dependency:get -Dartifact=net.spy:spymemcached:2.12.3
//     java -cp spymemcached-2.12.3.jar Spymemcached.java < keys.txt > spymemcached.txt
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.Scanner;
import net.spy.memcached.KetamaConnectionFactory;
import net.spy.memcached.MemcachedClient;
import net.spy.memcached.MemcachedNode;

class Spymemcached {
  public static void main(String[] arguments) throws Exception {
    List<String> keys = new ArrayList<>();
    Scanner scanner = new Scanner(System.in);
    while (scanner.hasNext()) keys.add(scanner.next());
    for (int count : new int[] {1, 2, 3, 7}) {
      List<InetSocketAddress> servers = new ArrayList<>();
      StringBuilder line = new StringBuilder("hash spymemcached-ketama\nservers");
      for (int n = 0; n < count; n++) {
        servers.add(new InetSocketAddress("127.0.0." + (n + 1), 11211 + n));
        line.append(" 127.0.0.").append(n + 1).append(':').append(11211 + n).append("=1");
      }
      System.out.println(line);
      MemcachedClient client = new MemcachedClient(new KetamaConnectionFactory(), servers);
      for (String key : keys) {
        MemcachedNode node = client.getNodeLocator().getPrimary(key);
        System.out.println(key + " " + servers.indexOf(node.getSocketAddress()));
      }
      client.shutdown();
    }
    System.exit(0);
  }
}
