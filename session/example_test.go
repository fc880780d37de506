package session_test

import (
	"context"
	"fmt"
	"log"

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

// A server and a client that no launcher has started. They have a secret in common, here by the variable of both, and tell
// each other their business cards in any way: over a socket, in a file, with a request of HTTP.
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
