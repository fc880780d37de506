//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// slurm is a cluster of this one machine, in a folder of its own.
type slurm struct {
	dir string
}

func (s *slurm) env() []string {
	return append(os.Environ(), "SLURM_CONF="+filepath.Join(s.dir, "slurm.conf"))
}

const slurmConf = `ClusterName=test
SlurmctldHost=%[1]s(127.0.0.1)
SlurmctldPort=%[2]d
SlurmdPort=%[3]d
SlurmUser=%[4]s
SlurmdUser=%[4]s
AuthType=auth/munge
AuthInfo=socket=%[5]s/munge.sock
CredType=cred/munge
StateSaveLocation=%[5]s/state
SlurmdSpoolDir=%[5]s/spool
SlurmctldPidFile=%[5]s/slurmctld.pid
SlurmdPidFile=%[5]s/slurmd.pid
SlurmctldLogFile=%[5]s/slurmctld.log
SlurmdLogFile=%[5]s/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SwitchType=switch/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=2
NodeName=%[1]s NodeAddr=127.0.0.1 CPUs=64 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
`

// startSlurm starts munged, slurmctld and slurmd, and ends them after the test.
func startSlurm(t *testing.T) *slurm {
	t.Helper()
	programs := map[string]string{}
	for _, p := range []string{"munged", "slurmctld", "slurmd", "srun", "scontrol"} {
		programs[p] = findProgramIn(t, p, "slurmctld slurmd slurm-client munge")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: slurmd starts tasks as their users")
	}
	// Munge wants no folder on the way to its socket that others may write to, not even one with the sticky bit.
	dir, err := os.MkdirTemp("/run", "bywash-slurm-")
	if err != nil {
		t.Fatal(err)
	}
	s := &slurm{dir: dir}
	t.Cleanup(func() { s.end(t) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"state", "spool", "pmix"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	key := make([]byte, 128)
	rand.Read(key)
	write(t, filepath.Join(dir, "munge.key"), key)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	host, _, _ = strings.Cut(host, ".")
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "slurm.conf"), fmt.Appendf(nil, slurmConf, host, freePort(t), freePort(t), me.Username, dir))
	// The plugin leaves its folders behind when it is killed, and fails where one is: job numbers start anew here.
	write(t, filepath.Join(dir, "mpi.conf"), []byte("PMIxCliTmpDirBase="+dir+"/pmix\n"))
	in := func(name string) string { return filepath.Join(dir, name) }
	s.daemon(t, programs["munged"], "--foreground", "--force", "--key-file="+in("munge.key"), "--socket="+in("munge.sock"),
		"--log-file="+in("munged.log"), "--pid-file="+in("munged.pid"), "--seed-file="+in("munged.seed"), "--num-threads=2")
	s.until(t, "munged opens its socket", func() bool { _, err := os.Stat(in("munge.sock")); return err == nil })
	s.daemon(t, programs["slurmctld"], "-D", "-i")
	s.daemon(t, programs["slurmd"], "-D", "-N", host)
	s.until(t, "the node is idle", func() bool {
		cmd := exec.Command(programs["scontrol"], "show", "node", host)
		cmd.Env = s.env()
		out, _ := cmd.CombinedOutput()
		return strings.Contains(string(out), "State=IDLE ")
	})
	return s
}

// end removes the folder, and what the daemons may have left running: its environment names the cluster.
func (s *slurm) end(t *testing.T) {
	mark := []byte("SLURM_CONF=" + s.dir + "/")
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, e := range environs {
		if b, err := os.ReadFile(e); err == nil && bytes.Contains(b, mark) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(e)))
			t.Logf("left over: process %d", pid)
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	os.RemoveAll(s.dir)
}

func write(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// freePort returns a port below those that the kernel gives to connections (ip_local_port_range), so that no connection
// of another process takes it before the daemon does.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 20_000 + mathrand.IntN(10_000)
		if ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			ln.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// daemon starts a program that dies with this one, and is ended after the test together with what it started.
func (s *slurm) daemon(t *testing.T, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = s.env()
	log, err := os.Create(filepath.Join(s.dir, filepath.Base(program)+".out"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		timer.Stop()
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	})
}

func (s *slurm) until(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !done() {
		select {
		case <-ctx.Done():
			logs, _ := filepath.Glob(filepath.Join(s.dir, "*.log"))
			for _, l := range logs {
				b, _ := os.ReadFile(l)
				t.Logf("%s:\n%s", filepath.Base(l), b)
			}
			t.Fatalf("in a minute not: %s", what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
