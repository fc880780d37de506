//go:build linux && !(386 || arm || mips || mipsle)

package launch_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/bywash/bywash/session/launch"
)

// The same program is a job of one rank when it is started by hand, and of many under a launcher.
func Example() {
	os.Setenv(launch.EnvLauncher, "alone") // as if started by hand
	defer os.Unsetenv(launch.EnvLauncher)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	job, err := launch.Find(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer job.Close()
	if err := job.Publish(ctx, fmt.Appendf(nil, "card of rank %d", job.Rank())); err != nil {
		log.Fatal(err)
	}
	if err := job.Fence(ctx); err != nil {
		log.Fatal(err)
	}
	card, err := job.Lookup(ctx, (job.Rank()+1)%job.Size())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("rank %d of %d found %q\n", job.Rank(), job.Size(), card)
	// Output: rank 0 of 1 found "card of rank 0"
}
