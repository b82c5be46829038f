# A conversation through one of Perl's clients: `perl conversation.pl Cache::Memcached|Cache::Memcached::Fast HOST:PORT`.
# It ends with code 1 and a message at the first answer that is not memcached's.
use strict;
use warnings;

my ($module, $address) = @ARGV;
my $is_fast = $module eq 'Cache::Memcached::Fast';
eval "require $module; 1" or die $@;
# Else the fast one refuses large values itself.
my $client = $module->new({ servers => [$address], $is_fast ? (max_size => 4_000_000) : () });

use constant LARGE_BYTES     => 1_000_000;
use constant TOO_LARGE_BYTES => 1_100_000;
use constant EXPIRY_WAIT_S   => 20;

sub same {
    my ($what, $found, $expected) = @_;
    my ($seen, $wanted) = map { defined $_ ? "'$_'" : 'nothing' } $found, $expected;
    return if $seen eq $wanted;
    print STDERR substr("$module: $what: $seen instead of $wanted", 0, 500), "\n";
    exit 1;
}

sub accepted { my ($what, $found) = @_; same($what, $found ? 1 : 0, 1); }
sub refused { my ($what, $found) = @_; same($what, $found ? 1 : 0, 0); }

# Storage.
same('get of what is absent', $client->get('absent'), undef);
accepted('set', $client->set('k', 'v'));
same('get', $client->get('k'), 'v');
accepted('set of a structure', $client->set('structure', { list => [1, 2, { deep => "\r\n\0" }] }));
same('get of a structure', $client->get('structure')->{list}[2]{deep}, "\r\n\0");
refused('add of what is there', $client->add('k', 'x'));
accepted('add', $client->add('added', 'x'));
refused('replace of nothing', $client->replace('absent', 'x'));
accepted('replace', $client->replace('k', 'x'));
accepted('append',  $client->append('k', 'y'));
accepted('prepend', $client->prepend('k', 'w'));
refused('append to nothing', $client->append('absent', 'y'));
same('get', $client->get('k'), 'wxy');
accepted('delete', $client->delete('k'));
refused('delete again', $client->delete('k'));
accepted('set of nothing', $client->set('empty', ''));
same('get of nothing', $client->get('empty'), '');

# Many at once.
my %many = map { ("many:$_" => "value $_") } 0 .. 299;
$client->set($_, $many{$_}) for keys %many;
my $found = $client->get_multi(keys %many, 'absent');
same('get_multi', scalar(keys %$found), 300);
same("get_multi of $_", $found->{$_}, $many{$_}) for keys %many;

# Counters and lifetimes.
$client->set('n', 10);
same('incr', $client->incr('n', 5), 15);
same('decr', $client->decr('n', 20) + 0, 0);
refused('incr of nothing', $client->incr('absent'));
accepted('set for a second', $client->set('brief', 'x', 1));
my $deadline = time + EXPIRY_WAIT_S;
while (defined $client->get('brief')) {
    accepted('an item expires', time < $deadline);
}

# Sizes.
my $large = 'x' x LARGE_BYTES;
accepted('set of a large value', $client->set('large', $large));
accepted('get of a large value', $client->get('large') eq $large);
refused('set of a value too large', $client->set('large', 'x' x TOO_LARGE_BYTES));
same('get of its key', $client->get('large'), undef);

if ($is_fast) {
    # It parses the version of each server, and takes part of its commands from that.
    my $versions = $client->server_versions;
    same('server_versions', $versions->{$address}, '1.6.45');
    $client->set('c', 'one');
    my ($unique, $value) = @{ $client->gets('c') };
    same('gets', $value, 'one');
    accepted('cas', $client->cas('c', $unique, 'two'));
    refused('cas with the old unique', $client->cas('c', $unique, 'three'));
    same('get', $client->get('c'), 'two');
    accepted('touch', $client->touch('c', 100));
    refused('touch of nothing', $client->touch('absent', 100));
    my @stored = $client->set_multi(['m:1', 1], ['m:2', 2]);
    accepted('set_multi', $stored[0] && $stored[1]);
}
else {
    my $stats = $client->stats('misc');
    same('the version in stats', $stats->{hosts}{$address}{misc}{version}, '1.6.45');
    accepted('pid in stats', $stats->{hosts}{$address}{misc}{pid} > 0);
}

accepted('flush_all', $client->flush_all);
same('get after a flush', $client->get('many:2'), undef);
print "$module: as with memcached\n";
