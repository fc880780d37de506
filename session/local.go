package session

import (
	"strconv"

	"github.com/bywash/bywash/session/launch"
)

// LocalRank returns this process's number among the ranks of the job on this host, from 0, and how many they are. Both
// are -1 if the launcher does not provide them. bywash run, Open MPI's mpirun and MPICH's mpiexec do; Slurm's srun
// provides the rank alone.
func (s *Session) LocalRank() (rank, size int) { return s.localRank, s.localSize }

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
	s.localRank, s.localSize = -1, -1
	if s.ownJob {
		s.localRank = first(launch.EnvLocalRank, "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
		s.localSize = first(launch.EnvLocalSize, "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
	}
	s.cpus = usableCPUs()
	s.oversubscribed = s.cpus > 0 && s.localSize > s.cpus
}

// oversubscribedBatch is how many polls a waiter makes before it gives up its CPU, where ranks outnumber the CPUs: the
// rank that it waits for may need this one. It is enough for one probe of all peers (Session.poll).
const (
	oversubscribedBatch = 64
	oversubscribedSpins = 64 * oversubscribedBatch
)
