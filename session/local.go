package session

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/session/launch"
)

// host is this process's place on its host.
type host struct {
	rank           int  // -1: not known
	size           int  // ranks on this host; -1: not known
	cpus           int  // number of CPUs that this process may use; 0: not known
	oversubscribed bool // ranks outnumber the CPUs, or may do so: this process may use one CPU alone

	skip    atomic.Uint32 // batches of polls without a yield, after each one
	skipped atomic.Uint32 // batches of polls since the latest yield
}

// LocalRank returns this process's number among the ranks of the job on this host, from 0, and how many they are. Both
// are -1 if Config.Job was given, or the launcher does not provide them. bywash run, Open MPI's mpirun and MPICH's
// mpiexec do; Slurm's srun provides the rank alone.
func (s *Session) LocalRank() (rank, size int) { return s.host.rank, s.host.size }

// findLocal reads the place on this host from the launcher's variables, and how many CPUs this process may use.
func (s *Session) findLocal(env func(string) string) {
	first := func(names ...string) int {
		for _, name := range names {
			if n, err := strconv.Atoi(env(name)); err == nil && n >= 0 && n <= s.size {
				return n
			}
		}
		return -1
	}
	s.host.rank, s.host.size = -1, -1
	if s.launcher.own {
		s.host.rank = first(launch.EnvLocalRank, "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
		s.host.size = first(launch.EnvLocalSize, "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
	}
	s.host.cpus = usableCPUs()
	s.host.oversubscribed = s.host.cpus > 0 && s.host.size > s.host.cpus || s.host.cpus == 1 && s.host.size < 0
}

// oversubscribedBatch is how many polls a waiter makes before it gives up its CPU, where ranks outnumber the CPUs: the
// rank that it waits for may need this one. It is enough for one probe of all peers (Session.poll).
const oversubscribedBatch = 64

// A yield that took less than idleYield found no other process that wanted the CPU, as where each rank is bound to a CPU of
// its own. Waiters then skip more and more yields, up to maxSkip in a row, until one takes longer.
const (
	idleYield = 2 * time.Microsecond
	maxSkip   = 16
)

// yield lets another process run.
func (h *host) yield() {
	if h.skipped.Add(1) <= h.skip.Load() {
		return
	}
	h.skipped.Store(0)
	start := time.Now()
	yieldCPU()
	if time.Since(start) < idleYield {
		h.skip.Store(min(2*h.skip.Load()+1, maxSkip))
	} else {
		h.skip.Store(0)
	}
}
