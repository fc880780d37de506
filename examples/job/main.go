// Job is the program of README.md: each process of a job sends a line and 16 MiB to its right neighbour, by package
// session.
//
//	go build -o bin/job ./examples/job
//	bin/bywash run -n 4 bin/job
package main

import (
	"context"
	"fmt"
	"log"

	_ "github.com/bywash/bywash/driver/all"
	"github.com/bywash/bywash/session"
)

func main() {
	ctx := context.Background()
	s, err := session.Join(ctx, session.Config{}) // finds its launcher; opens the drivers that its ranks need
	check(err)
	right := s.Gate((s.Rank() + 1) % s.Size())
	left := s.Gate((s.Rank() + s.Size() - 1) % s.Size())

	// A word to the right, one from the left: the first message connects.
	check(right.Send(ctx, 1, fmt.Appendf(nil, "hello from rank %d of %d", s.Rank(), s.Size())))
	word := make([]byte, 100)
	n, err := left.Recv(ctx, 1, word)
	check(err)
	fmt.Printf("rank %d: %s, by %s\n", s.Rank(), word[:n], left.Path())

	// 16 MiB the same way, sent and received at once: by rendezvous, from memory to memory.
	out, in := make([]byte, 16<<20), make([]byte, 16<<20)
	request, err := left.Irecv(2, in)
	check(err)
	check(right.Send(ctx, 2, out))
	_, err = request.Wait(ctx)
	check(err)
	check(s.Close(ctx)) // waits until all messages are delivered
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
