// One line of JSON every 100 ms: what this program's runtime takes its limits to be.
package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"
)

func main() {
	for {
		fmt.Printf("{\"processors\": %d, \"heap_limit_bytes\": %d}\n", runtime.GOMAXPROCS(0), debug.SetMemoryLimit(-1))
		time.Sleep(100 * time.Millisecond)
	}
}
