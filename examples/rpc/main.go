// Rpc calls a procedure in another process by active messages: each process of a job has three words put into capitals by
// its right neighbour. All calls are under way at once; an answer has the number of its call in the header.
//
//	go build -o bin/rpc ./examples/rpc
//	bin/bywash run -n 2 bin/rpc
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log"

	_ "github.com/bywash/bywash/driver/all"
	"github.com/bywash/bywash/session"
)

// Numbers of active messages.
const (
	request = 1
	answer  = 2
)

// Tags of messages.
const (
	ready = 1
	done  = 2
)

func main() {
	ctx := context.Background()
	s, err := session.Join(ctx, session.Config{})
	check(err)
	right := s.Gate((s.Rank() + 1) % s.Size())
	left := s.Gate((s.Rank() + s.Size() - 1) % s.Size())

	// A handler must not block. The memory of its message is the session's after it returns, so the answer has its own.
	s.Handle(request, func(from *session.Gate, a *session.Active) {
		_, err := from.AMMsg(&session.ActiveOut{
			Number: answer, Header: a.Header, Data: bytes.ToUpper(a.Data),
			Then: func(_ session.Status, err error) { check(err) }, // the answer is sent, or its caller is gone
		})
		check(err)
	})
	words := []string{"around", "the", "kernel"}
	answers := make([]chan string, len(words))
	for call := range answers {
		answers[call] = make(chan string, 1)
	}
	s.Handle(answer, func(_ *session.Gate, a *session.Active) {
		answers[binary.LittleEndian.Uint32(a.Header)] <- string(a.Data)
	})
	check(left.Send(ctx, ready, nil)) // its requests find a handler now
	_, err = right.Recv(ctx, ready, nil)
	check(err)

	for call, word := range words {
		r, err := right.AM(request, binary.LittleEndian.AppendUint32(nil, uint32(call)), []byte(word))
		check(err)
		_, err = r.Wait(ctx)
		check(err)
	}
	for call := range words {
		fmt.Printf("rank %d: call %d of rank %d: %s\n", s.Rank(), call, right.Rank(), <-answers[call])
	}

	check(right.Send(ctx, done, nil)) // no more requests
	_, err = left.Recv(ctx, done, nil)
	check(err)
	check(s.Close(ctx))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
