// Elastic is a server whose clients come and go, and a client. They have a secret in common and exchange business cards by
// HTTP. The server puts lines into capitals, and forgets clients that end or die.
//
//	go build -o bin/elastic ./examples/elastic
//	export BYWASH_SECRET=$(openssl rand -hex 32)
//	bin/elastic serve 127.0.0.1:7000 & sleep 1; echo hello | bin/elastic connect 127.0.0.1:7000; kill $!
package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	_ "github.com/bywash/bywash/driver/all"
	"github.com/bywash/bywash/session"
)

const line = 1 // the tag of all messages

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: elastic serve|connect ADDRESS")
	}
	ctx := context.Background()
	s := must(session.Join(ctx, session.Config{AllDrivers: true})) // the others may be on other hosts
	if os.Args[1] == "connect" {
		client(ctx, s, os.Args[2])
		return
	}
	http.HandleFunc("POST /cards", func(w http.ResponseWriter, r *http.Request) {
		if card, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16<<10)); err == nil {
			go serve(ctx, s, card)
			_, _ = w.Write(s.Card()) // a client that does not get it does not connect
		}
	})
	l := must(net.Listen("tcp", os.Args[2]))
	fmt.Println("serving at", l.Addr())
	log.Fatal(http.Serve(l, nil))
}

// serve answers the client with that card until it is gone.
func serve(ctx context.Context, s *session.Session, card []byte) {
	soon, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	g, err := s.Connect(soon, card)
	for buf, n := make([]byte, bufio.MaxScanTokenSize), 0; err == nil; {
		if n, err = g.Recv(ctx, line, buf); err == nil {
			err = g.Send(ctx, line, bytes.ToUpper(buf[:n]))
		}
	}
	fmt.Println("a client is gone:", err)
	if g != nil {
		_ = g.Forget() // fails for ranks of a job only
	}
}

func client(ctx context.Context, s *session.Session, server string) {
	r := must(http.Post("http://"+server+"/cards", "application/octet-stream", bytes.NewReader(s.Card())))
	g := must(s.Connect(ctx, must(io.ReadAll(r.Body))))
	buf := make([]byte, bufio.MaxScanTokenSize)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		must(0, g.Send(ctx, line, in.Bytes()))
		fmt.Printf("%s\n", buf[:must(g.Recv(ctx, line, buf))])
	}
	must(0, s.Close(ctx))
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
