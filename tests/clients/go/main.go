// A conversation through gomemcache, which speaks the text protocol: `conversation HOST:PORT [AUTHORITY]`, through TLS with
// the file of the authority that is to be believed.
//
// It ends with code 1 and a message at the first answer that is not memcached's.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

const (
	largeBytes    = 1_000_000
	tooLargeBytes = 1_100_000
	manyKeys      = 300
	expiryWait    = 20 * time.Second
)

func main() {
	if len(os.Args) < 2 || len(os.Args) > 3 {
		fmt.Fprintln(os.Stderr, "usage: conversation HOST:PORT [AUTHORITY]")
		os.Exit(2)
	}
	client := memcache.New(os.Args[1])
	if len(os.Args) == 3 {
		believed, err := os.ReadFile(os.Args[2])
		authorities := x509.NewCertPool()
		if err != nil || !authorities.AppendCertsFromPEM(believed) {
			fmt.Fprintln(os.Stderr, "no authority in "+os.Args[2])
			os.Exit(2)
		}
		client.DialContext = (&tls.Dialer{Config: &tls.Config{RootCAs: authorities}}).DialContext
	}
	client.Timeout = 10 * time.Second
	storage(client)
	manyAtOnce(client)
	compareAndSwap(client)
	counters(client)
	lifetimes(client)
	sizes(client)
	is("flush_all", client.FlushAll(), nil)
	missing(client, "many:1")
	is("version", client.Ping(), nil)
	fmt.Println("gomemcache: as with memcached")
}

// is ends the program unless err is the error (or none) that is expected.
func is(what string, err, expected error) {
	if !errors.Is(err, expected) {
		fail("%s: %v instead of %v", what, err, expected)
	}
}

func fail(format string, facts ...any) {
	fmt.Fprintf(os.Stderr, "gomemcache: "+format+"\n", facts...)
	os.Exit(1)
}

func text(key, value string) *memcache.Item {
	return &memcache.Item{Key: key, Value: []byte(value)}
}

func present(client *memcache.Client, key, value string, flags uint32) {
	item, err := client.Get(key)
	is("get "+key, err, nil)
	if string(item.Value) != value || item.Flags != flags {
		fail("get %s: %.40q with flags %d instead of %.40q with %d", key, item.Value, item.Flags, value, flags)
	}
}

func missing(client *memcache.Client, key string) {
	_, err := client.Get(key)
	is("get "+key, err, memcache.ErrCacheMiss)
}

func storage(client *memcache.Client) {
	missing(client, "absent")
	is("set", client.Set(&memcache.Item{Key: "k", Value: []byte("v\r\n\x00"), Flags: 1<<32 - 1}), nil)
	present(client, "k", "v\r\n\x00", 1<<32-1)
	is("set of nothing", client.Set(text("empty", "")), nil)
	present(client, "empty", "", 0)
	is("add of what is there", client.Add(text("k", "x")), memcache.ErrNotStored)
	is("add", client.Add(text("added", "x")), nil)
	is("replace of what is absent", client.Replace(text("absent", "x")), memcache.ErrNotStored)
	is("replace", client.Replace(text("k", "x")), nil)
	is("append", client.Append(text("k", "y")), nil)
	is("prepend", client.Prepend(text("k", "w")), nil)
	is("append to what is absent", client.Append(text("absent", "y")), memcache.ErrNotStored)
	present(client, "k", "wxy", 0)
	is("delete", client.Delete("k"), nil)
	is("delete again", client.Delete("k"), memcache.ErrCacheMiss)
	missing(client, "k")
}

func manyAtOnce(client *memcache.Client) {
	keys := []string{"absent"}
	for index := range make([]struct{}, manyKeys) {
		key := fmt.Sprintf("many:%d", index)
		keys = append(keys, key)
		is("set "+key, client.Set(text(key, "value of "+key)), nil)
	}
	found, err := client.GetMulti(keys)
	is("get of many", err, nil)
	if len(found) != manyKeys {
		fail("get of many: %d items instead of %d", len(found), manyKeys)
	}
	for key, item := range found {
		if string(item.Value) != "value of "+key {
			fail("get of many: %s is %q", key, item.Value)
		}
	}
}

func compareAndSwap(client *memcache.Client) {
	is("set", client.Set(text("c", "one")), nil)
	item, err := client.Get("c")
	is("gets", err, nil)
	item.Value = []byte("two")
	is("cas", client.CompareAndSwap(item), nil)
	is("cas with the old unique", client.CompareAndSwap(item), memcache.ErrCASConflict)
	present(client, "c", "two", 0)
	is("delete", client.Delete("c"), nil)
	is("cas of what is gone", client.CompareAndSwap(item), memcache.ErrCacheMiss)
}

func counters(client *memcache.Client) {
	is("set", client.Set(text("n", "10")), nil)
	number, err := client.Increment("n", 5)
	is("incr", err, nil)
	lower, err := client.Decrement("n", 20)
	is("decr", err, nil)
	if number != 15 || lower != 0 {
		fail("10 + 5 = %d, less 20 = %d", number, lower)
	}
	_, err = client.Increment("absent", 1)
	is("incr of what is absent", err, memcache.ErrCacheMiss)
	is("set", client.Set(text("word", "x")), nil)
	_, err = client.Increment("word", 1)
	told := "memcache: client error: cannot increment or decrement non-numeric value"
	if err == nil || err.Error() != told {
		fail("incr of a word: %v instead of %s", err, told)
	}
}

func lifetimes(client *memcache.Client) {
	is("touch of what is absent", client.Touch("absent", 100), memcache.ErrCacheMiss)
	is("touch", client.Touch("n", 100), nil)
	item, err := client.GetAndTouch("n", 100)
	is("gat", err, nil)
	if string(bytes.TrimSpace(item.Value)) != "0" {
		fail("gat: %q instead of 0", item.Value)
	}
	is("set of what has expired", client.Set(&memcache.Item{Key: "gone", Value: []byte("x"), Expiration: -1}), nil)
	missing(client, "gone")
	is("set for a second", client.Set(&memcache.Item{Key: "brief", Value: []byte("x"), Expiration: 1}), nil)
	deadline := time.Now().Add(expiryWait)
	for err = nil; err == nil; _, err = client.Get("brief") {
		if time.Now().After(deadline) {
			fail("set for a second: there after %v", expiryWait)
		}
	}
	is("get of what expired", err, memcache.ErrCacheMiss)
}

func sizes(client *memcache.Client) {
	large := string(bytes.Repeat([]byte("x"), largeBytes))
	is("set of a large value", client.Set(text("large", large)), nil)
	present(client, "large", large, 0)
	err := client.Set(&memcache.Item{Key: "large", Value: make([]byte, tooLargeBytes)})
	if err == nil {
		fail("set of a value too large: stored")
	}
	missing(client, "large")
	is("a key with a space", client.Set(text("a b", "x")), memcache.ErrMalformedKey)
}
