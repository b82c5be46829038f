<?php
// A conversation through PHP's extension memcached (libmemcached): `conversation.php HOST:PORT text|binary [USER PASSWORD]`.
// A third word after the protocol leaves out what asks for statistics.
// It ends with code 1 and a message at the first answer that is not memcached's.
declare(strict_types=1);

const LARGE_BYTES = 1_000_000;
const TOO_LARGE_BYTES = 1_100_000;
const EXPIRY_WAIT_S = 20;

[, $address, $protocol] = $argv;
[$host, $port] = explode(':', $address);
$client = new Memcached();
$client->setOption(Memcached::OPT_BINARY_PROTOCOL, $protocol === 'binary');
$client->setOption(Memcached::OPT_COMPRESSION, false);
$client->addServer($host, (int) $port);
if (($argv[3] ?? '') !== '') {
    $client->setSaslAuthData($argv[3], $argv[4]);
}

function same(string $what, mixed $found, mixed $expected): void
{
    global $client, $protocol;
    if ($found !== $expected) {
        $told = sprintf('%s instead of %s', var_export($found, true), var_export($expected, true));
        fwrite(STDERR, "php ($protocol): $what: " . substr($told, 0, 500) . "; " . $client->getResultMessage() . "\n");
        exit(1);
    }
}

/** What the call gives, and the code that says why. */
function refused(string $what, mixed $found, int ...$codes): void
{
    global $client;
    same($what, $found, false);
    same("$what: code {$client->getResultCode()}", in_array($client->getResultCode(), $codes, true), true);
}

// Storage. The text protocol says NOT_STORED where the binary one says that the key is there, or is not.
refused('get of what is absent', $client->get('absent'), Memcached::RES_NOTFOUND);
same('set', $client->set('k', 'v'), true);
same('get', $client->get('k'), 'v');
foreach (["\r\n\0", 7, 1.5, true, ['a' => [1, null, 'ü']]] as $value) {
    same('set of a type', $client->set('typed', $value), true);
    same('flags say the type', $client->get('typed'), $value);
}
refused('add of what is there', $client->add('k', 'x'), Memcached::RES_NOTSTORED, Memcached::RES_DATA_EXISTS);
same('add', $client->add('added', 'x'), true);
refused('replace of nothing', $client->replace('absent', 'x'), Memcached::RES_NOTSTORED, Memcached::RES_NOTFOUND);
same('replace', $client->replace('k', 'x'), true);
same('append', $client->append('k', 'y'), true);
same('prepend', $client->prepend('k', 'w'), true);
refused('append to nothing', $client->append('absent', 'y'), Memcached::RES_NOTSTORED, Memcached::RES_NOTFOUND);
same('get', $client->get('k'), 'wxy');
same('delete', $client->delete('k'), true);
refused('delete again', $client->delete('k'), Memcached::RES_NOTFOUND);

// Many at once.
$many = [];
for ($index = 0; $index < 300; $index++) {
    $many["many:$index"] = "value $index";
}
same('setMulti', $client->setMulti($many), true);
$found = $client->getMulti([...array_keys($many), 'absent']);
ksort($found);
ksort($many);
same('getMulti', $found, $many);
same('getDelayed', $client->getDelayed(['many:1', 'many:2'], true), true);
same('fetchAll', array_column($client->fetchAll(), 'value', 'key'), ['many:1' => 'value 1', 'many:2' => 'value 2']);
same('deleteMulti', $client->deleteMulti(['many:1', 'absent']), ['many:1' => true, 'absent' => Memcached::RES_NOTFOUND]);

// Compare and swap.
$client->set('c', 'one');
['value' => $value, 'cas' => $unique] = $client->get('c', null, Memcached::GET_EXTENDED);
same('gets', $value, 'one');
same('cas', $client->cas($unique, 'c', 'two'), true);
refused('cas with the old unique', $client->cas($unique, 'c', 'three'), Memcached::RES_DATA_EXISTS);
same('get', $client->get('c'), 'two');

// Counters and lifetimes.
$client->set('n', 10);
same('increment', $client->increment('n', 5), 15);
same('decrement', $client->decrement('n', 20), 0);
refused('increment of nothing', $client->increment('absent'), Memcached::RES_NOTFOUND);
if ($protocol === 'binary') {
    same('increment with an initial value', $client->increment('begun', 1, 10), 10);
}
same('touch', $client->touch('n', 100), true);
refused('touch of nothing', $client->touch('absent', 100), Memcached::RES_NOTFOUND);
same('set for a second', $client->set('brief', 'x', 1), true);
$deadline = microtime(true) + EXPIRY_WAIT_S;
while ($client->get('brief') !== false) {
    same('an item expires', microtime(true) < $deadline, true);
}

// Sizes, statistics, flush.
$large = str_repeat('x', LARGE_BYTES);
same('set of a large value', $client->set('large', $large), true);
same('get of a large value', $client->get('large') === $large, true);
same('set of a value too large', $client->set('large', str_repeat('x', TOO_LARGE_BYTES)), false);
$told = $client->getStats()["$host:$port"];
same('stats', $told['threads'], 2);
same('version', preg_match('/^\d+\.\d+\.\d+$/', $client->getVersion()["$host:$port"]), 1);
same('flush', $client->flush(), true);
refused('get after flush', $client->get('many:2'), Memcached::RES_NOTFOUND);
echo "php ($protocol): as with memcached\n";
