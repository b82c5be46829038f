# Prints where dalli itself puts keys: the vectors of tests/other_clients.rs. No server is needed.
#
#     apt-get install ruby-dalli      (3.0.6 wrote the file beside this one)
#     ruby dalli.rb < keys.txt > dalli.txt
require 'dalli'

keys = $stdin.read.split
[[1, 1], [1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [1, 3, 7]].each do |weights|
  names = weights.each_index.map { |n| n.zero? ? 'cache.example:11211' : "10.0.0.#{n}:#{11_211 + n}" }
  servers = names.zip(weights).map { |name, weight| "#{name}:#{weight}" }
  client = Dalli::Client.new(servers)
  ring = client.send(:ring)
  ring.servers.each { |server| server.define_singleton_method(:alive?) { true } }
  puts 'hash dalli'
  puts "servers #{names.zip(weights).map { |name, weight| "#{name}=#{weight}" }.join(' ')}"
  keys.each { |key| puts "#{key} #{names.index(ring.server_for_key(key).name)}" }
end
