// A look-aside application over gomemcache, whose goroutines share a client and its pool of connections:
// `look_aside CACHE DATABASE KEYS READERS SECONDS`. It knows no leases.
//
// It prints {"reads": N, "hits": N, "stored": N, "refused": N}.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

var reads, hits, stored, refused atomic.Int64

func main() {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: look_aside CACHE DATABASE KEYS READERS SECONDS")
		os.Exit(2)
	}
	keys, readers := number(os.Args[3]), number(os.Args[4])
	seconds, err := strconv.ParseFloat(os.Args[5], 64)
	if err != nil {
		fail(err)
	}
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	client := memcache.New(os.Args[1])
	client.Timeout = 10 * time.Second
	client.MaxIdleConns = readers
	var running sync.WaitGroup
	for reader := 0; reader < readers; reader++ {
		running.Add(1)
		go func() {
			defer running.Done()
			read(client, os.Args[2], keys, end)
		}()
	}
	running.Wait()
	fmt.Printf(`{"reads": %d, "hits": %d, "stored": %d, "refused": %d}`+"\n",
		reads.Load(), hits.Load(), stored.Load(), refused.Load())
}

func read(client *memcache.Client, database string, keys int, end time.Time) {
	connection, err := net.Dial("tcp", database)
	if err != nil {
		fail(err)
	}
	defer connection.Close()
	rows := bufio.NewReader(connection)
	for time.Now().Before(end) {
		key := fmt.Sprintf("row:%d", rand.Intn(keys))
		reads.Add(1)
		_, err := client.Get(key)
		if err == nil {
			hits.Add(1)
			continue
		}
		if !errors.Is(err, memcache.ErrCacheMiss) {
			fail(err)
		}
		fmt.Fprintf(connection, "%s\n", key)
		row, err := rows.ReadString('\n')
		if err != nil {
			fail(err)
		}
		err = client.Set(&memcache.Item{Key: key, Value: []byte(row[:len(row)-1])})
		switch {
		case err == nil:
			stored.Add(1)
		case errors.Is(err, memcache.ErrNotStored):
			refused.Add(1)
		default:
			fail(err)
		}
	}
}

func number(word string) int {
	number, err := strconv.Atoi(word)
	if err != nil {
		fail(err)
	}
	return number
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "gomemcache:", err)
	os.Exit(1)
}
