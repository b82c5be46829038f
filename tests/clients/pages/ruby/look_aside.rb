# A look-aside application over the cache of docs/clients/ruby.md, with a thread for each reader:
# `look_aside.rb CACHE DATABASE KEYS READERS SECONDS`. It knows no leases.
#
# It prints {"reads": N, "hits": N, "stored": N, "refused": N}.
require 'json'
require 'socket'
require_relative 'cache'

SOURCES = { 'cache' => :hits, 'database' => :stored, 'database, not stored' => :refused }.freeze

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

# Reads keys until the end; how often they came from where.
def read(cache, database, keys, ends_at)
  counts = Hash.new(0)
  host, port = database.split(':')
  rows = TCPSocket.new(host, port)
  while now < ends_at
    key = "row:#{rand(keys)}"
    _, source = cache.read(key) do
      rows.puts(key)
      Integer(rows.gets)
    end
    counts[:reads] += 1
    counts[SOURCES.fetch(source)] += 1
  end
  counts
end

router, database, keys, readers, seconds = ARGV
ends_at = now + Float(seconds)
cache = Cache.new(router, threads: Integer(readers))
threads = Array.new(Integer(readers)) { Thread.new { read(cache, database, Integer(keys), ends_at) } }
totals = threads.map(&:value).inject { |one, other| one.merge(other) { |_, a, b| a + b } }
puts JSON.generate(totals)
