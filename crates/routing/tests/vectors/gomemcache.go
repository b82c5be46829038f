// Prints where gomemcache itself puts keys: the vectors of tests/other_clients.rs. No server is needed.
//
//	go get github.com/bradfitz/gomemcache/memcache    (v0.0.0-20260422231931 wrote the file beside this one)
//	go run gomemcache.go < keys.txt > gomemcache.txt
package main

import (
	"bufio"
	"fmt"
	"os"

	"github.com/bradfitz/gomemcache/memcache"
)

func main() {
	var keys []string
	for scanner := bufio.NewScanner(os.Stdin); scanner.Scan(); {
		keys = append(keys, scanner.Text())
	}
	for _, count := range []int{1, 2, 3, 7} {
		var servers []string
		index := map[string]int{}
		fmt.Print("hash gomemcache\nservers")
		for n := 0; n < count; n++ {
			servers = append(servers, fmt.Sprintf("127.0.0.1:%d", 5000+n))
			index[servers[n]] = n
			fmt.Printf(" %s=1", servers[n])
		}
		fmt.Println()
		list := new(memcache.ServerList)
		if err := list.SetServers(servers...); err != nil {
			panic(err)
		}
		for _, key := range keys {
			address, err := list.PickServer(key)
			if err != nil {
				panic(err)
			}
			fmt.Println(key, index[address.String()])
		}
	}
}
