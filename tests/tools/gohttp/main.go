// gohttp is Go's net/http as a client and as a server with the settings of kube-apiserver, for the tests of the proxy between them.
//
//	gohttp server --cert FILE --key FILE [--goaway-chance 0.02]
//	gohttp client --ca FILE --url URL... [--http1] [--requests N] ...
//
// The server says on its first line of output where it listens, and ends with its standard input. The client checks every byte of
// every answer, says on one line what it did, and fails when anything went wrong.
package main

import (
	"fmt"
	"os"
)

func main() {
	var run func(args []string) error
	if len(os.Args) > 1 {
		run = map[string]func([]string) error{"server": runServer, "client": runClient}[os.Args[1]]
	}
	if run == nil {
		fmt.Fprintln(os.Stderr, "usage: gohttp server|client [flags]")
		os.Exit(2)
	}
	if err := run(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "gohttp:", err)
		os.Exit(1)
	}
}

// pattern fills bytes with what position and seed say, so that neither side has to keep a body to know it.
func pattern(bytes []byte, seed uint64) {
	state := seed*0x9e3779b97f4a7c15 | 1
	for at := range bytes {
		if at%8 == 0 {
			state ^= state << 13
			state ^= state >> 7
			state ^= state << 17
		}
		bytes[at] = byte(state >> (at % 8 * 8))
	}
}
