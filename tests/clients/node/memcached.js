// A conversation through the package `memcached`, which speaks the text protocol: `memcached.js HOST:PORT`.
// It ends with code 1 and a message at the first answer that is not memcached's.
'use strict';

const assert = require('node:assert/strict');
const { promisify } = require('node:util');
const Memcached = require('memcached');

const LARGE_BYTES = 1_000_000;
const EXPIRY_WAIT_MS = 20_000;
const client = new Memcached(process.argv[2], { timeout: 10_000, retries: 0, maxValue: 10_000_000 });
const ask = Object.fromEntries(
  ['get', 'gets', 'getMulti', 'set', 'add', 'replace', 'cas', 'append', 'prepend', 'incr', 'decr', 'del', 'touch',
    'stats', 'settings', 'version', 'flush'].map((name) => [name, promisify(client[name]).bind(client)]),
);
// The package gives "not stored" as an error without a message of its own.
const notStored = (promise) => promise.then(Boolean, () => false);

async function storage() {
  assert.equal(await ask.get('absent'), undefined);
  assert.equal(await ask.set('k', 'v', 0), true);
  assert.equal(await ask.get('k'), 'v');
  for (const value of [7, true, { a: [1, null, 'ü'] }, Buffer.from([0, 13, 10, 255])]) {
    await ask.set('typed', value, 0);
    assert.deepEqual(await ask.get('typed'), value, 'flags say the type');
  }
  assert.equal(await notStored(ask.add('k', 'x', 0)), false, 'add of what is there');
  assert.equal(await ask.add('added', 'x', 0), true);
  assert.equal(await notStored(ask.replace('absent', 'x', 0)), false, 'replace of what is absent');
  assert.equal(await ask.replace('k', 'x', 0), true);
  assert.equal(await ask.append('k', 'y'), true);
  assert.equal(await ask.prepend('k', 'w'), true);
  assert.equal(await notStored(ask.append('absent', 'y')), false, 'append to what is absent');
  assert.equal(await ask.get('k'), 'wxy');
  assert.equal(await ask.del('k'), true);
  assert.equal(await ask.del('k'), false, 'delete again');
}

async function manyAtOnce() {
  const keys = Array.from({ length: 300 }, (_, index) => `many:${index}`);
  await Promise.all(keys.map((key) => ask.set(key, `value of ${key}`, 0)));
  const found = await ask.getMulti([...keys, 'absent']);
  assert.deepEqual(Object.keys(found).sort(), [...keys].sort());
  for (const key of keys) assert.equal(found[key], `value of ${key}`);
}

async function compareAndSwap() {
  await ask.set('c', 'one', 0);
  const { c, cas } = await ask.gets('c');
  assert.equal(c, 'one');
  assert.equal(await ask.cas('c', 'two', cas, 0), true);
  assert.equal(await ask.cas('c', 'three', cas, 0), false, 'cas with the old unique');
  assert.equal(await ask.get('c'), 'two');
}

async function counters() {
  await ask.set('n', 10, 0);
  assert.equal(await ask.incr('n', 5), 15);
  assert.equal(await ask.decr('n', 20), 0);
  assert.equal(await ask.incr('absent', 1), false);
}

async function lifetimes() {
  assert.equal(await ask.touch('n', 100), true);
  assert.equal(await ask.touch('absent', 100), false, 'touch of what is absent');
  assert.equal(await ask.set('brief', 'x', 1), true);
  const deadline = Date.now() + EXPIRY_WAIT_MS;
  while ((await ask.get('brief')) !== undefined) assert.ok(Date.now() < deadline, 'an item expires');
}

async function sizes() {
  const large = 'x'.repeat(LARGE_BYTES);
  assert.equal(await ask.set('large', large, 0), true);
  assert.ok((await ask.get('large')) === large, 'a large value comes back');
}

async function administration() {
  const [told] = await ask.stats();
  assert.equal(told.threads, 2);
  const [settings] = await ask.settings();
  assert.equal(settings.num_threads, 2);
  const [version] = await ask.version();
  assert.match(version.version, /^\d+\.\d+\.\d+/);
  await ask.flush();
  assert.equal(await ask.get('many:1'), undefined, 'flush');
}

async function main() {
  for (const part of [storage, manyAtOnce, compareAndSwap, counters, lifetimes, sizes, administration]) await part();
}

main().then(
  () => client.end(),
  (error) => {
    console.error(`memcached: ${error.stack || error}`);
    process.exit(1);
  },
);
