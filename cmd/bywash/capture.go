//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/bywash/bywash/internal/stat"
)

const captureLong = `Capture writes the frames and datagrams that running processes send and receive
past the kernel, where tcpdump does not see them, to a pcapng file for Wireshark.
It captures from the processes that bywash stat shows: those of this user (all,
as root) in this network namespace, or only those with the given ids. Without ids
it includes processes that start later. A process takes part in at most eight
captures at a time, each of at most 64 NICs. Of the drivers, afxdp sends frames
past the kernel.

It ends after Ctrl-C, after -c frames, after --duration, or when all processes
with the given ids have ended, and then reports the number of frames.

Each NIC of each process is an interface in the file. When both ends are on this
machine the file has a frame twice: sent by one, received by the other. Frames of
several processes are nearly in the order of their times; reordercap sorts them.
A process copies frames into a ring and drops frames for which the ring has no
room. The interface statistics in the file count dropped frames (in Wireshark:
Statistics, Capture File Properties); --snap 128 reduces them.

The file has the bytes of the wire: messages in the clear, or encrypted if the
driver encrypts them (afxdp: option encrypt=on), but never a key or a session
secret. Only its owner can read the file.

Wireshark and tshark show the packets of afxdp with hack/wireshark/bywash.lua of
the source tree, given by -X lua_script:FILE or copied into Wireshark's plugin
directory.`

const captureExample = `  bywash capture -o run.pcapng                      all frames, until Ctrl-C
  bywash capture -o - | wireshark -k -i - -X lua_script:hack/wireshark/bywash.lua
  bywash capture -o run.pcapng -c 1000 --snap 128 4711
  tshark -X lua_script:hack/wireshark/bywash.lua -r run.pcapng`

type captureFlags struct {
	out, device string
	snap        int
	count       int64
	duration    time.Duration
}

func captureCommand() *cobra.Command {
	var f captureFlags
	cmd := &cobra.Command{
		Use:     "capture -o FILE.pcapng [flags] [PID…]",
		Short:   "Capture the frames that drivers send and receive, for Wireshark",
		Long:    captureLong,
		Example: captureExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			pids, err := parsePIDs(args)
			if err != nil {
				return err
			}
			req, err := f.request(cmd)
			if err != nil {
				return err
			}
			return f.run(cmd, pids, req)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVarP(&f.out, "output", "o", "", "`file` to write; - is standard output")
	fl.StringVar(&f.device, "dev", "", "only NICs of this `name`")
	fl.IntVar(&f.snap, "snap", 0, "store at most this many `bytes` of each frame")
	fl.Int64VarP(&f.count, "count", "c", 0, "end after this many `frames`")
	fl.DurationVar(&f.duration, "duration", 0, "end after this `time`")
	return cmd
}

func parsePIDs(args []string) (pids []int, err error) {
	for _, a := range args {
		n, err := strconv.ParseUint(a, 10, 31)
		if err != nil || n == 0 {
			return nil, usagef("process id %q: it is a positive number", a)
		}
		pids = append(pids, int(n))
	}
	return pids, nil
}

// request checks the flags.
func (f *captureFlags) request(cmd *cobra.Command) (r stat.CaptureRequest, err error) {
	changed := cmd.Flags().Changed
	switch {
	case f.out == "":
		return r, usagef("capture needs -o FILE.pcapng, or -o - for a pipe")
	case f.out == "-" && term.IsTerminal(int(os.Stdout.Fd())):
		return r, usagef("-o -: standard output is a terminal; pipe it into wireshark -k -i -")
	case changed("snap") && (f.snap < 1 || f.snap > 1<<16):
		return r, usagef("--snap %d: it is from 1 to 65536 bytes", f.snap)
	case changed("count") && f.count < 1:
		return r, usagef("-c %d: it is at least 1", f.count)
	case changed("duration") && f.duration <= 0:
		return r, usagef("--duration %s: it is more than 0", f.duration)
	}
	return stat.CaptureRequest{Device: f.device, Snap: f.snap}, nil
}

func (f *captureFlags) run(cmd *cobra.Command, pids []int, req stat.CaptureRequest) error {
	ctx, done := context.WithCancel(cmd.Context())
	defer done()
	if f.duration > 0 {
		ctx, done = context.WithTimeout(ctx, f.duration)
		defer done()
	}
	c := &capture{
		stderr: cmd.ErrOrStderr(), req: req, pids: pids, count: f.count, done: done,
		seen: make(map[stat.Endpoint]bool), attached: make(map[int]bool), refused: make(map[int]error),
		running: make(map[*stat.Stream]struct{}),
	}
	// A file from earlier is kept until it is certain that there will be a capture.
	if err := c.begin(); err != nil {
		c.stop()
		return err
	}
	out, err := f.open(ctx)
	if err != nil {
		c.stop()
		return err
	}
	w := &watchedWriter{to: out}
	c.out = bufio.NewWriterSize(w, 1<<20)
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(c.run(ctx), c.finish()) }()
	if err = w.await(ctx, ended); err == errStuck {
		return fmt.Errorf("write %s: its reader took nothing for %v", f.out, stuckTime)
	}
	if f.out != "-" {
		err = errors.Join(err, out.Close())
	}
	if err != nil {
		return err
	}
	hint := ""
	if len(c.nics) == 0 {
		hint = " (only afxdp sends frames past the kernel)"
	}
	_, err = fmt.Fprintf(c.stderr, "bywash: %d frames of %d NICs, %d more dropped, in %s%s\n",
		c.taken, len(c.nics), c.dropped(), f.out, hint)
	return err
}

// stuckTime is for how long the reader of a pipe may take nothing after the end of the capture.
const stuckTime = 5 * time.Second

var errStuck = errors.New("nothing is written")

// watchedWriter counts the bytes that are written, in pieces of what a pipe has room for.
type watchedWriter struct {
	to      io.Writer
	written atomic.Int64
}

func (w *watchedWriter) Write(b []byte) (sum int, err error) {
	for piece := range slices.Chunk(b, 64<<10) {
		n, err := w.to.Write(piece)
		sum += n
		w.written.Add(int64(n))
		if err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// await returns what ended brings. After ctx has ended it waits only while bytes are written, or for stuckTime.
func (w *watchedWriter) await(ctx context.Context, ended <-chan error) error {
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	for before := w.written.Load(); ; {
		select {
		case err := <-ended:
			return err
		case <-time.After(stuckTime):
		}
		n := w.written.Load()
		if n == before {
			return errStuck
		}
		before = n
	}
}

// open opens the output, of which only the owner can read a file: messages are nobody else's business. It waits for the
// reader of a named pipe until ctx ends.
func (f *captureFlags) open(ctx context.Context) (*os.File, error) {
	if f.out == "-" {
		return os.Stdout, nil
	}
	var out *os.File
	var err error
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		out, err = os.OpenFile(f.out, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	}()
	select {
	case <-opened:
	case <-ctx.Done():
		return nil, fmt.Errorf("open %s: nobody reads it", f.out)
	}
	if err != nil {
		return nil, err
	}
	if info, err := out.Stat(); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		if err := out.Chmod(0o600); err != nil {
			return nil, errors.Join(err, out.Close())
		}
	}
	return out, nil
}

// capture is one under way.
type capture struct {
	stderr io.Writer
	req    stat.CaptureRequest
	pids   []int // empty: all
	count  int64 // 0: no limit
	done   context.CancelFunc

	seen     map[stat.Endpoint]bool // not to be asked again
	attached map[int]bool           // processes, by their ids
	refused  map[int]error          // of processes that were named
	streams  sync.WaitGroup
	fresh    []freshStream             // that nobody follows yet
	running  map[*stat.Stream]struct{} // guarded by mu

	mu    sync.Mutex
	out   *bufio.Writer
	w     *pcapgo.NgWriter // from the first NIC on, with which a file begins
	nics  []nicCapture     // by their numbers in the file
	taken int64
	err   error
}

type freshStream struct {
	s   *stat.Stream
	pid int
}

type nicCapture struct {
	since  time.Time
	counts stat.Counts
	taken  uint64
}

// captureScan is how often new processes are looked for, and the file is written: soon enough for
// the first frames of most.
const captureScan = 20 * time.Millisecond

// begin asks the processes that there are. Its error is that the capture cannot be made.
func (c *capture) begin() error {
	if err := c.scan(); err != nil {
		return err
	}
	if len(c.pids) == 0 {
		return nil
	}
	for _, f := range c.fresh {
		if err := f.s.Await(); err != nil {
			return err
		}
	}
	return c.missing()
}

// run captures until ctx ends, or all processes that were named have.
func (c *capture) run(ctx context.Context) (err error) {
	tick := time.NewTicker(captureScan)
	defer tick.Stop()
	var rest time.Time // no scan before
	c.followFresh()
	if len(c.attached) == 0 {
		fmt.Fprintln(c.stderr, "bywash: no process here can be captured from yet; waiting for one")
	}
	for err == nil && !c.over() {
		select {
		case <-ctx.Done():
			err = context.Canceled
		case <-tick.C:
			if start := time.Now(); len(c.pids) == 0 && start.After(rest) {
				err = c.scan()
				rest = time.Now().Add(20 * time.Since(start)) // the kernel's list of sockets may be long
				c.followFresh()
			}
			err = cmp.Or(err, c.flush())
		}
	}
	c.stop()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// stop ends all streams.
func (c *capture) stop() {
	for _, f := range c.fresh {
		f.s.Close()
	}
	c.mu.Lock()
	for s := range c.running {
		s.Stop()
	}
	c.mu.Unlock()
	c.streams.Wait()
}

// followFresh begins to write what the processes show that scan has asked.
func (c *capture) followFresh() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.fresh {
		c.running[f.s] = struct{}{}
		c.streams.Go(func() { c.follow(f.s, f.pid) })
	}
	c.fresh = nil
}

// scan asks processes that have not been asked.
func (c *capture) scan() error {
	ends, err := stat.Captures()
	if err != nil {
		return err
	}
	for _, e := range ends {
		if c.seen[e] || len(c.pids) > 0 && !slices.Contains(c.pids, e.PID) {
			continue
		}
		s, err := stat.Capture(e, c.req)
		if err != nil {
			// The process may have ended, or not listen yet; or the socket is another user's: anybody can make one with
			// such a name.
			c.seen[e] = errors.Is(err, stat.ErrForeign) || errors.Is(err, stat.ErrUser)
			if len(c.pids) > 0 {
				c.refused[e.PID] = err
			}
			continue
		}
		c.seen[e], c.attached[e.PID] = true, true
		c.fresh = append(c.fresh, freshStream{s, e.PID})
	}
	return nil
}

// missing returns the error of a process that was named and is not captured from.
func (c *capture) missing() error {
	for _, pid := range c.pids {
		switch {
		case c.attached[pid]:
		case c.refused[pid] != nil:
			return c.refused[pid]
		default:
			return noAnswer(pid)
		}
	}
	return nil
}

// over reports whether nothing can come any more.
func (c *capture) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil || c.full() || len(c.pids) > 0 && len(c.running) == 0
}

func (c *capture) full() bool { return c.count > 0 && c.taken == c.count }

func (c *capture) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.w == nil {
		return nil
	}
	return cmp.Or(c.w.Flush(), c.out.Flush())
}

// follow writes what one process shows.
func (c *capture) follow(s *stat.Stream, pid int) {
	defer s.Close()
	var numbers []int    // in the file, of the stream's interfaces
	var err, wrote error // of the stream, and of the file
	for err == nil && wrote == nil {
		var r stat.Record
		if r, err = s.Next(); err != nil {
			break
		}
		c.mu.Lock()
		for more := true; more && err == nil && wrote == nil; { // the lock is not taken for each
			if numbers, wrote = c.record(r, numbers, pid); wrote == nil {
				if more = s.Buffered(); more {
					r, err = s.Next()
				}
			}
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, s)
	switch {
	case errors.Is(err, io.EOF):
	case len(c.pids) == 0 && wrote == nil: // a process must not end the capture from others
		fmt.Fprintf(c.stderr, "bywash: %v\n", err)
	default:
		c.err = cmp.Or(c.err, wrote, err)
		c.done()
	}
}

// record takes one. The caller holds the lock.
func (c *capture) record(r stat.Record, numbers []int, pid int) ([]int, error) {
	if r.Ready {
		fmt.Fprintf(c.stderr, "bywash: capturing from process %d\n", pid)
		return numbers, nil
	}
	if i := r.Interface; i != nil {
		k, err := c.addInterface(pcapgo.NgInterface{
			Name: i.Device, Description: fmt.Sprintf("%s in process %d", i.Driver, pid),
			LinkType: layers.LinkType(i.LinkType), SnapLength: uint32(c.req.Snap),
		})
		c.nics = append(c.nics, nicCapture{since: time.Now()})
		return append(numbers, k), err
	}
	k := numbers[r.Number]
	if r.Counts != nil {
		c.nics[k].counts = *r.Counts
		return numbers, nil
	}
	if c.full() {
		return numbers, nil
	}
	c.taken++
	c.nics[k].taken++
	if c.full() {
		c.done()
	}
	flags := pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionInbound}
	if r.Sent {
		flags.Direction = pcapgo.NgEpbFlagDirectionOutbound
	}
	about := gopacket.CaptureInfo{Timestamp: time.Unix(0, r.Time), CaptureLength: len(r.Frame), Length: r.Length, InterfaceIndex: k}
	return numbers, c.w.WritePacketWithOptions(about, r.Frame, pcapgo.NgPacketOptions{Flags: &flags})
}

// addInterface announces a NIC in the file, and returns its number there. The caller holds the lock.
func (c *capture) addInterface(i pcapgo.NgInterface) (number int, err error) {
	if c.w != nil {
		return c.w.AddInterface(i)
	}
	section := pcapgo.NgSectionInfo{OS: "Linux", Application: "bywash " + programVersion()}
	c.w, err = pcapgo.NewNgWriterInterface(c.out, i, pcapgo.NgWriterOptions{SectionInfo: section})
	return 0, err
}

// finish writes how many frames there were.
func (c *capture) finish() error {
	err := c.err
	if c.w == nil {
		_, e := c.addInterface(pcapgo.NgInterface{Name: "none", Description: "no process was captured from", LinkType: layers.LinkTypeEthernet})
		err = cmp.Or(err, e)
	}
	now := time.Now()
	for k, n := range c.nics {
		err = cmp.Or(err, c.w.WriteInterfaceStats(k, pcapgo.NgInterfaceStatistics{
			StartTime: n.since, EndTime: now, LastUpdate: now, PacketsReceived: max(n.counts.Frames, n.taken), PacketsDropped: n.counts.Dropped,
		}))
	}
	return cmp.Or(err, c.w.Flush(), c.out.Flush())
}

func (c *capture) dropped() (sum uint64) {
	for _, n := range c.nics {
		sum += n.counts.Dropped
	}
	return sum
}
