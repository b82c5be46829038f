# A look-aside application over the store that Rails.cache is with :mem_cache_store, with a thread for each reader:
# `rails_cache.rb CACHE DATABASE KEYS READERS SECONDS`. Its threads share a pool of connections.
#
# It prints {"reads": N, "hits": N}: the store does not report whether a value was stored.
require 'active_support'
require 'active_support/cache'
require 'json'
require 'socket'

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

# Reads keys until the end; the numbers of reads and of hits.
def read(store, database, keys, ends_at)
  reads = hits = 0
  host, port = database.split(':')
  rows = TCPSocket.new(host, port)
  while now < ends_at
    key = "row:#{rand(keys)}"
    reads += 1
    hits += 1
    store.fetch(key, raw: true) do
      hits -= 1
      rows.puts(key)
      rows.gets.chomp
    end
  end
  [reads, hits]
end

router, database, keys, readers, seconds = ARGV
ends_at = now + Float(seconds)
store = ActiveSupport::Cache::MemCacheStore.new(router, pool_size: Integer(readers), socket_timeout: 10)
threads = Array.new(Integer(readers)) { Thread.new { read(store, database, Integer(keys), ends_at) } }
reads, hits = threads.map(&:value).transpose.map(&:sum)
puts JSON.generate(reads: reads, hits: hits)
