package session_test

import (
	"context"
	"fmt"

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
