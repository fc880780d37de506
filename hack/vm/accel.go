//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kvmTrial is how long a guest under KVM may take to come up. Where virtual machines are virtualised themselves, it may
// hang before its first line although /dev/kvm is there.
const kvmTrial = 10 * time.Second

// chooseAccel returns "kvm" if that really works, otherwise "tcg". The answer is kept in the cache until this machine's
// kernel, processor or QEMU changes, "tcg" for a day: a trial may have failed because the machine was busy.
func chooseAccel(ctx context.Context, cache string, k *kernel) (string, error) {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return "tcg", nil
	}
	f.Close()
	qemu, err := findTool("qemu-system-x86_64")
	if err != nil {
		return "", err
	}
	file, key := filepath.Join(cache, "accel"), machineKey(qemu)
	if st, err := os.Stat(file); err == nil {
		known, _ := os.ReadFile(file)
		accel, ok := strings.CutPrefix(strings.TrimSpace(string(known)), key+" ")
		if ok && (accel == "kvm" || time.Since(st.ModTime()) < 24*time.Hour) {
			return accel, nil
		}
	}
	say("trying KVM for %v", kvmTrial)
	accel := "tcg"
	works, err := bootsUnderKVM(ctx, k)
	if err != nil {
		return "", err
	}
	if works {
		accel = "kvm"
	}
	say("using %s", strings.ToUpper(accel))
	return accel, writeFileAtomic(file, []byte(key+" "+accel+"\n"))
}

// machineKey changes with the kernel, processor or QEMU under a guest.
func machineKey(qemu string) string {
	var uts unix.Utsname
	unix.Uname(&uts)
	h := sha256.New()
	fmt.Fprintln(h, unix.ByteSliceToString(uts.Release[:]), unix.ByteSliceToString(uts.Version[:]))
	if info, err := os.Stat(qemu); err == nil {
		fmt.Fprintln(h, info.Size(), info.ModTime())
	}
	cpus, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(cpus)) {
		if strings.HasPrefix(line, "model name") {
			fmt.Fprint(h, line)
			break
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

func bootsUnderKVM(ctx context.Context, k *kernel) (bool, error) {
	g := guest{config: map[string]string{"VM_PROBE": "1"}}
	image, err := initrd(ctx, k, []string{"virtio_pci", "virtio_console"}, g)
	if err != nil {
		return false, err
	}
	ours, link, err := socketPair()
	if err != nil {
		return false, err
	}
	defer ours.Close()
	first := make(chan bool, 2)
	h := &hardware{accel: "kvm", kernel: k, memory: 512, cpus: 2, mtu: 1500}
	nowhere := outputs{stdout: io.Discard, stderr: io.Discard}
	m, err := startMachine(h, g, image, link, nowhere, func(_ int, msg message, err error) {
		select {
		case first <- err == nil && msg.kind == "ready":
		default:
		}
	})
	if err != nil {
		return false, err
	}
	defer m.stop()
	select {
	case works := <-first:
		return works, nil
	case <-time.After(kvmTrial):
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}
