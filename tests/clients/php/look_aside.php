<?php
// A look-aside application over PHP's extension memcached, a process for each reader, as under php-fpm:
// `look_aside.php CACHE DATABASE KEYS SECONDS`. It knows no leases.
//
// It prints {"reads": N, "hits": N, "stored": N, "refused": N}.
declare(strict_types=1);

[, $cache, $database, $keys, $seconds] = $argv;
[$host, $port] = explode(':', $cache);
$client = new Memcached();
$client->setOption(Memcached::OPT_COMPRESSION, false);
$client->addServer($host, (int) $port);
$rows = stream_socket_client("tcp://$database");
$counts = ['reads' => 0, 'hits' => 0, 'stored' => 0, 'refused' => 0];
$end = microtime(true) + (float) $seconds;
while (microtime(true) < $end) {
    $key = 'row:' . random_int(0, (int) $keys - 1);
    $counts['reads']++;
    $client->get($key);
    if ($client->getResultCode() === Memcached::RES_SUCCESS) {
        $counts['hits']++;
        continue;
    }
    if ($client->getResultCode() !== Memcached::RES_NOTFOUND) {
        fail($client);
    }
    fwrite($rows, "$key\n");
    $row = rtrim((string) fgets($rows));
    if ($client->set($key, $row)) {
        $counts['stored']++;
    } elseif ($client->getResultCode() === Memcached::RES_NOTSTORED) {
        $counts['refused']++;
    } else {
        fail($client);
    }
}
echo json_encode($counts), "\n";

function fail(Memcached $client): never
{
    fwrite(STDERR, 'php: ' . $client->getResultMessage() . "\n");
    exit(1);
}
