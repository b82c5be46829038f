// A look-aside application over memjs, which sends all requests over one connection:
// `look_aside.js CACHE DATABASE KEYS READERS SECONDS`. It knows no leases.
//
// It prints {"reads": N, "hits": N, "stored": N, "refused": N}.
'use strict';

const net = require('node:net');
const memjs = require('memjs');

const [cache, database, keys, readers, seconds] = process.argv.slice(2);
const client = memjs.Client.create(cache, { timeout: 10, retries: 0, logger: { log() {} } });
const counts = { reads: 0, hits: 0, stored: 0, refused: 0 };
const end = Date.now() + seconds * 1000;

// Rows of one connection to the database, in the order of the queries.
function connect() {
  const [host, port] = database.split(':');
  const socket = net.connect(Number(port), host);
  const waiting = [];
  let text = '';
  socket.on('data', (bytes) => {
    text += bytes;
    const lines = text.split('\n');
    text = lines.pop();
    for (const line of lines) waiting.shift()(line);
  });
  socket.on('error', fail);
  const query = (key) => new Promise((resolve) => {
    waiting.push(resolve);
    socket.write(`${key}\n`);
  });
  return { query, close: () => socket.destroy() };
}

async function read() {
  const rows = connect();
  while (Date.now() < end) {
    const key = `row:${Math.floor(Math.random() * keys)}`;
    counts.reads += 1;
    const { value } = await client.get(key);
    if (value !== null) {
      counts.hits += 1;
      continue;
    }
    const row = await rows.query(key);
    try {
      const stored = await client.set(key, row, {});
      counts[stored ? 'stored' : 'refused'] += 1;
    } catch (error) {
      // memjs reports NOT_STORED so.
      if (!/not stored/i.test(error.message)) throw error;
      counts.refused += 1;
    }
  }
  rows.close();
}

function fail(error) {
  console.error(`memjs: ${error.stack}`);
  process.exit(1);
}

Promise.all(Array.from({ length: Number(readers) }, read))
  .then(() => {
    console.log(JSON.stringify(counts));
    client.close();
  })
  .catch(fail);
