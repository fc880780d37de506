//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"strings"
	"sync"
	"time"

	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/launch"
)

// A job of one rank sends to itself; with a launcher the same program runs with
// many.
func Example() {
	ctx := context.Background()
	s, err := session.Join(ctx, session.Config{Job: launch.Alone()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close(ctx)
	right := s.Gate((s.Rank() + 1) % s.Size())
	left := s.Gate((s.Rank() + s.Size() - 1) % s.Size())
	if err := right.Send(ctx, 1, []byte("hello")); err != nil {
		fmt.Println(err)
		return
	}
	buf := make([]byte, 16)
	n, err := left.Recv(ctx, 1, buf)
	fmt.Printf("%s %v\n", buf[:n], err)
	// Output: hello <nil>
}

// A server and a client that no launcher has started. They have a secret in common, here by the variable of both, and
// exchange their business cards in any way: over a socket, in a file, with a request of HTTP.
func ExampleSession_Connect() {
	ctx := context.Background()
	secret := launch.NewSecret()
	cards := map[string]chan []byte{"server": make(chan []byte, 1), "client": make(chan []byte, 1)}

	go func() { // in another process
		client, err := session.Join(ctx, session.Config{Job: launch.Alone(), Secret: secret})
		if err != nil {
			log.Fatal(err)
		}
		defer client.Close(ctx)
		cards["client"] <- client.Card()
		g, err := client.Connect(ctx, <-cards["server"])
		if err != nil {
			log.Fatal(err)
		}
		if err := g.Send(ctx, 1, []byte("a request")); err != nil {
			log.Fatal(err)
		}
	}()

	left := make(chan *session.Gate, 1)
	server, err := session.Join(ctx, session.Config{
		Job: launch.Alone(), Secret: secret,
		OnClosed: func(g *session.Gate) { left <- g },            // a client has closed its session
		OnError:  func(e *session.Error) { _ = e.Gate.Forget() }, // or has died
	})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close(ctx)
	cards["server"] <- server.Card()
	g, err := server.Connect(ctx, <-cards["client"])
	if err != nil {
		log.Fatal(err)
	}
	buf := make([]byte, 100)
	n, err := g.Recv(ctx, 1, buf)
	fmt.Printf("%s %v\n", buf[:n], err)
	_ = (<-left).Forget()
	fmt.Println(len(server.Gates()), "clients")
	// Output:
	// a request <nil>
	// 0 clients
}

// ranks runs f as each rank of a job in this process, as tests do: every rank has a session of its own.
func ranks(size int, f func(ctx context.Context, s *session.Session)) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ln, err := launch.Listen(ctx, "")
	if err != nil {
		log.Fatal(err)
	}
	secret := launch.NewSecret()
	server := launch.Serve(ln, size, secret)
	defer server.Close()
	var all sync.WaitGroup
	for rank := range size {
		all.Go(func() {
			job, err := launch.Join(ctx, ln.Addr().String(), rank, size, secret)
			if err != nil {
				log.Fatal(err)
			}
			defer job.Close()
			s, err := session.Join(ctx, session.Config{Job: job, Rails: []session.Rail{{Driver: "shm"}}})
			if err != nil {
				log.Fatal(err)
			}
			f(ctx, s)
			if err := s.Close(ctx); err != nil {
				log.Fatal(err)
			}
		})
	}
	all.Wait()
}

// Several ranks in one process, for a test: the function ranks serves the rendezvous, and joins once for each of them.
func ExampleJoin_ranksInOneProcess() {
	ranks(2, func(ctx context.Context, s *session.Session) {
		numbers := []float64{float64(s.Rank()), 0}
		other := s.Gate(1 - s.Rank())
		from := session.Match{From: other, Tag: 1}
		if _, err := other.SendRecv(ctx, 1, session.Bytes(numbers[:1]), from, session.Bytes(numbers[1:])); err != nil {
			log.Fatal(err)
		}
		if s.Rank() == 0 {
			fmt.Println(numbers)
		}
	})
	// Output: [0 1]
}

// Calls of a procedure in another process: the request is an active message with a number, and so is the answer, which
// has the number of its call in the header.
func ExampleGate_AMMsg_calls() {
	const request, answer = 1, 2
	ranks(2, func(ctx context.Context, s *session.Session) {
		done := make(chan string, 1)
		s.Handle(request, func(from *session.Gate, a *session.Active) { // on rank 1
			text := strings.ToUpper(string(a.Data)) // the message's memory is the session's after the handler
			_, err := from.AMMsg(&session.ActiveOut{
				Number: answer, Header: a.Header, Data: []byte(text),
				Then: func(_ session.Status, err error) { // Data may be reused
					if err != nil {
						log.Print(err)
					}
				},
			})
			if err != nil {
				log.Print(err)
			}
		})
		s.Handle(answer, func(_ *session.Gate, a *session.Active) { // on rank 0
			done <- fmt.Sprintf("call %d: %s", binary.LittleEndian.Uint32(a.Header), a.Data)
		})
		other := s.Gate(1 - s.Rank())
		if s.Rank() == 1 {
			if err := other.Send(ctx, 3, nil); err != nil { // its handlers are there
				log.Fatal(err)
			}
			if _, err := other.Recv(ctx, 4, nil); err != nil { // rank 0 has its answer
				log.Fatal(err)
			}
			return
		}
		if _, err := other.Recv(ctx, 3, nil); err != nil {
			log.Fatal(err)
		}
		head := binary.LittleEndian.AppendUint32(nil, 7)
		r, err := other.AM(request, head, []byte("hello"))
		if err == nil {
			_, err = r.Wait(ctx)
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(<-done)
		if err := other.Send(ctx, 4, nil); err != nil {
			log.Fatal(err)
		}
	})
	// Output: call 7: HELLO
}

// A file of any length in pieces, with two under way: while one is sent, the next is read. A shorter piece is the last.
func ExampleGate_Isend_file() {
	const piece = 1 << 20
	file := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	ranks(2, func(ctx context.Context, s *session.Session) {
		if s.Rank() == 0 {
			in := bytes.NewReader(file)
			var bufs [2][]byte
			var sent [2]*session.Request
			for k := 0; ; k = 1 - k {
				if bufs[k] == nil {
					bufs[k] = make([]byte, piece)
				} else if _, err := sent[k].Wait(ctx); err != nil {
					log.Fatal(err)
				}
				n, err := io.ReadFull(in, bufs[k])
				if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
					log.Fatal(err)
				}
				if sent[k], err = s.Gate(1).Isend(1, bufs[k][:n]); err != nil {
					log.Fatal(err)
				}
				if n < piece {
					if _, err := session.WaitAll(ctx, sent[:]); err != nil {
						log.Fatal(err)
					}
					return
				}
			}
		}
		sum, buf := sha256.New(), make([]byte, piece)
		for n := piece; n == piece; {
			var err error
			if n, err = s.Gate(0).Recv(ctx, 1, buf); err != nil {
				log.Fatal(err)
			}
			sum.Write(buf[:n])
		}
		fmt.Println([32]byte(sum.Sum(nil)) == sha256.Sum256(file))
	})
	// Output: true
}
