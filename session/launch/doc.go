// Package launch finds out which rank of which job this process is, and distributes the business cards of the job's
// ranks. It implements the protocols of these launchers:
//
//	embedded   bywash run, or a rank 0 that serves the others itself
//	pmi1       MPICH's mpiexec (PMI-1, the wire protocol in Go)
//	pmi2       Slurm's srun --mpi=pmi2, MPICH's mpiexec (PMI-2, the same)
//	pmix       Open MPI's mpirun and prterun, Slurm's srun --mpi=pmix (through
//	           libpmix, opened when it is needed)
//	alone      nothing: a job of one rank
//
// A program calls [Find], publishes its card, fences, and looks up the ranks
// that it talks to:
//
//	job, err := launch.Find(ctx)
//	same, err := job.Agree(ctx, word) // optional: do all ranks run on one host, with the same word?
//	err = job.Publish(ctx, card)
//	err = job.Fence(ctx)
//	card, err := job.Lookup(ctx, peer)
//
// The traffic of a rank is constant: its joining, its word, its card, its fence and each look-up. Nothing of that is
// broadcast, so a job's total is linear in its ranks as long as each talks to few (docs/launch.md has the figures).
//
// The ranks of a job can give each other data and wait for each other at any time ([Client.Exchange]). A program that
// starts its ranks itself serves them with [Listen] and [Serve]; each of them calls [Join] or, with the variables of
// [RankEnv], [Find].
//
// The embedded launcher notifies each rank that has asked how other ranks ended ([Client.WatchEnds]). Ends within 2 ms
// of each other are reported in one message. If all ranks watch, the number of messages can grow with the square of the
// ranks.
//
// # Environment
//
//	BYWASH_RENDEZVOUS  HOST:PORT where bywash run serves, or rank0@HOST:PORT where rank 0 does
//	BYWASH_RANK        this process's rank, from 0
//	BYWASH_SIZE        the number of ranks
//	BYWASH_SECRET      64 hexadecimal digits, or another even number from 32 on, that only the job's ranks know; alone: that
//	                   the processes know which connect to one another
//	BYWASH_JOIN_TIME   how long a rank 0 that serves waits for all to join, as 90s; 0: no limit; unset: 5 minutes
//	BYWASH_LAUNCHER    one of the names above: take that one, or fail
//
// Without the last, BYWASH_RENDEZVOUS comes first, then PMIx's variables, then PMI's. docs/launch.md shows how to start
// a program under each launcher, and has the variables that sessions read.
//
// # Trust
//
// The secret is generated once a job. Embedded ranks get it from their environment. Rank and rendezvous prove to each
// other that they know it before anything else is sent, and every later message is authenticated. Under PMI and PMIx
// rank 0 generates it and the launcher's own key-value space carries it: there it is as safe as the launcher.
package launch
