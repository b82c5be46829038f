/* Prints where libmemcached itself puts keys: the vectors of tests/other_clients.rs. No server is needed.
 *
 *     apt-get install libmemcached-dev      (1.1.4 wrote the file beside this one)
 *     cc libmemcached.c -lmemcached -o /tmp/vectors && /tmp/vectors < keys.txt > libmemcached.txt
 */
#include <libmemcached/memcached.h>
#include <stdio.h>
#include <string.h>

struct server {
  const char *host;
  int port;
  int weight;
};

static char keys[64][256];
static int key_count;

static void print_case(const char *hash, int ketama, int weighted, const struct server *servers, int count) {
  memcached_st *client = memcached_create(NULL);
  if (ketama) memcached_behavior_set(client, MEMCACHED_BEHAVIOR_KETAMA, 1);
  if (weighted) memcached_behavior_set(client, MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, 1);
  printf("hash %s\nservers", hash);
  for (int n = 0; n < count; n++) {
    memcached_server_add_with_weight(client, servers[n].host, servers[n].port, servers[n].weight);
    printf(" %s:%d=%d", servers[n].host, servers[n].port, servers[n].weight);
  }
  printf("\n");
  for (int n = 0; n < key_count; n++) {
    printf("%s %u\n", keys[n], memcached_generate_hash(client, keys[n], strlen(keys[n])));
  }
  memcached_free(client);
}

int main(void) {
  const struct server five[] = {{"10.0.0.1", 11211, 1}, {"10.0.0.2", 11211, 1}, {"10.0.0.3", 5001, 1},
                                {"cache.example", 11211, 1}, {"10.0.0.1", 11212, 1}};
  const struct server weighted[] = {{"10.0.0.1", 11211, 1}, {"10.0.0.2", 5001, 3}, {"10.0.0.3", 11211, 7}};
  while (key_count < 64 && scanf("%255s", keys[key_count]) == 1) key_count++;
  for (int count = 1; count <= 5; count += 2) {
    print_case("libmemcached", 0, 0, five, count);
    print_case("libmemcached-ketama", 1, 0, five, count);
    print_case("libmemcached-ketama-weighted", 1, 1, five, count);
  }
  print_case("libmemcached-ketama-weighted", 1, 1, weighted, 3);
  return 0;
}
